{{ head }}
{% include "places.rs" %}

/// The memories. The compiler checks that no two buffers which are live at once overlap.
pub mod memory {
    #![allow(long_running_const_eval)]
    use allotment::arena;
    use allotment::plan::Arena;
{%- for Arena { tier, bytes, section, .. } in arenas %}

    arena! {
        /// The plan of memory {{ tier }}.
        pub struct Tier{{ tier }}({{ bytes }}) {
{%- for slot in slots if slot.buffer.tier == *tier %}
            /// `{{ slot.tensors.join("`, then `") }}`.
            {{ slot.name }}: {{ slot.kind }} = {{ slot.buffer.start }}..{{ slot.buffer.end }}, align({{ slot.buffer.align.next_power_of_two() }})
    {%- for gap in slot.buffer.gaps %}
        {%- if loop.first %}, gaps(&[{% else %}, {% endif -%}
        allotment::plan::Interval::new({{ gap.start }}..{{ gap.end }})
        {%- if loop.last %}]){% endif %}
    {%- endfor %};
{%- endfor %}
        } at [{% for slot in slots if slot.buffer.tier == *tier %}{% if !loop.first %}, {% endif %}{{ slot.offset }}{% endfor %}]
    }

    /// Memory {{ tier }}.
{%- if let Some(name) = section %}
    #[unsafe(link_section = "{{ name }}")]
{%- endif %}
    pub static ARENA_{{ tier }}: Arena<Tier{{ tier }}> = Arena::new();
{%- endfor %}
}

/// What the steps do: a method for each operator, with its tensors.
pub trait Operators {
{%- for Method { name, parameters, about } in methods %}
    /// {{ about }}
    #[allow(clippy::too_many_arguments)]
    fn {{ name }}(&mut self{% for parameter in parameters %}, {{ parameter }}{% endfor %});
{%- endfor %}
}
{%- for function in functions %}

/// {{ function.about }}. `None` if an arena is in use.
#[must_use]
pub fn {{ function.name }}(operators: &mut impl Operators) -> Option<()> {
{%- for Arena { tier, .. } in arenas if function.uses(tier) %}
    let mut tier{{ tier }} = memory::ARENA_{{ tier }}.begin()?;
{%- endfor %}
{%- for call in function.calls %}
    {%- match call %}
    {%- when Call::View(operator) %}
    // `{{ operator }}`: a view, nothing is computed.
    {%- when Call::Caller(method, slot, time) %}
    operators.{{ method }}(tier{{ slot.buffer.tier }}.at::<{{ time }}>().get(memory::{{ slot }}));
    {%- when Call::Copy([from, to], time) %}
    tier{{ to.buffer.tier }}.at::<{{ time }}>().get(memory::{{ to }}).copy_from_slice(tier{{ from.buffer.tier }}.at::<{{ time }}>().get(memory::{{ from }}));
    {%- when Call::Run { method, time, tiers, arguments } %}
    {
        {%- for (tier, places) in tiers %}
        let ({% for _ in places %}{% if !loop.first %} {% endif %}t{{ tier }}_{{ loop.index0 }},{% endfor %}) = tier{{ tier }}.at::<{{ time }}>().get((
            {%- for slot in places %}{% if !loop.first %} {% endif %}memory::{{ slot }},{% endfor %}));
        {%- endfor %}
        operators.{{ method }}({{ arguments.join(", ") }});
    }
    {%- endmatch %}
{%- endfor %}
    Some(())
}
{%- endfor %}
