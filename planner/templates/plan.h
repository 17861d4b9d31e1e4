/*
{{ head }}*/
#ifndef {{ prefix }}_PLAN_H
#define {{ prefix }}_PLAN_H

#include <stdint.h>

#define {{ prefix }}_BUFFERS {{ lines.len() }}u
{%- for Arena { tier, bytes, align, .. } in arenas %}
#define {{ prefix }}_TIER_{{ tier }}_BYTES {{ bytes }}u
#define {{ prefix }}_TIER_{{ tier }}_ALIGN {{ align }}u
{%- if let Some(line) = cache_lines.get(tier) %}
#define {{ prefix }}_TIER_{{ tier }}_CACHE_LINE {{ line }}u
{%- endif %}
{%- endfor %}
{% for Line { name, tier, offset, size, .. } in lines %}
#define {{ prefix }}_{{ name }}_TIER {{ tier }}u
#define {{ prefix }}_{{ name }}_OFFSET {{ offset }}u
#define {{ prefix }}_{{ name }}_SIZE {{ size }}u
#define {{ prefix }}_{{ name }}_AT ({{ prefix }}_ARENA_{{ tier }} + {{ prefix }}_{{ name }}_OFFSET)
{%- endfor %}

/* The memory of each tier; what is in it at first is not known. */
{%- for Arena { tier, .. } in arenas %}
extern uint8_t {{ prefix }}_ARENA_{{ tier }}[{{ prefix }}_TIER_{{ tier }}_BYTES + !{{ prefix }}_TIER_{{ tier }}_BYTES];
{%- endfor %}

#ifdef {{ prefix }}_PLAN_ARENAS
{%- for Arena { tier, section, .. } in arenas %}
__attribute__(({% if let Some(name) = section %}section("{{ name }}"), {% endif %}aligned({{ prefix }}_TIER_{{ tier }}_ALIGN)))
uint8_t {{ prefix }}_ARENA_{{ tier }}[{{ prefix }}_TIER_{{ tier }}_BYTES + !{{ prefix }}_TIER_{{ tier }}_BYTES];
{%- endfor %}
#endif

/* {tier, offset, size} of each buffer. */
static const uint64_t {{ prefix }}_PLAN[{{ lines.len().max(1) }}][3] = {
{%- for line in lines %}
    { {{- line.tier }}u, {{ line.offset }}u, {{ line.size }}u}, /* {{ line.remark }} */
{%- else %}
    {0, 0, 0},
{%- endfor %}
};
{% if !steps.is_empty() %}
/* What a step does. The caller provides what it writes (GIVEN: inputs before every run, constants and states before the
   first), an operator runs (RUN), a place is copied to another (COPY), a constant is read again from the model (LOAD), or the
   caller may read the outputs (TAKEN). */
enum { {{ prefix }}_GIVEN, {{ prefix }}_RUN, {{ prefix }}_COPY, {{ prefix }}_LOAD, {{ prefix }}_TAKEN };
/* How the first output lies: APART from the inputs, as a VIEW of the first one (nothing is computed), or so that it overwrites
   an input (OVER). */
enum { {{ prefix }}_APART, {{ prefix }}_VIEW, {{ prefix }}_OVER };

#define {{ prefix }}_NO_PLACE UINT32_MAX /* an operand that the plan has no place for */
#define {{ prefix }}_STEP_COUNT {{ steps.len() }}u

/* The operands of all steps: indices into {{ prefix }}_PLAN. */
static const uint32_t {{ prefix }}_OPERANDS[] = {
{%- for CStep { step, .. } in steps %}
    {% for operand in step.reads.iter().chain(step.writes.iter()) %}
        {%- if let Some(place) = operand.place %}{{ place }}u, {% else %}{{ prefix }}_NO_PLACE, {% endif %}
    {%- endfor %}/* time {{ step.time }} */
{%- endfor %}
    {{ prefix }}_NO_PLACE
};

/* The steps in order: those that read come first among the operands. An operator makes chunk `chunk` of `chunks`. */
static const struct {
    const char *operator_name;
    uint64_t time, chunk, chunks;
    uint32_t what, lies, operands, reads, writes;
} {{ prefix }}_STEPS[{{ prefix }}_STEP_COUNT] = {
{%- for CStep { step, operator, act, lies, first } in steps %}
    {"{{ operator }}", {{ step.time }}u, {{ step.chunk.0 }}u, {{ step.chunk.1 }}u, {{ prefix }}_{{ act }}, {{ prefix }}_{{ lies }}, {{ first }}u, {{ step.reads.len() }}u, {{ step.writes.len() }}u},
{%- endfor %}
};
{% endif %}
#endif
