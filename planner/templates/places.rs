/// One place: its tier, its offset in the tier's arena, bytes, and the time steps `start..end` at which it is live.
#[allow(dead_code)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub tier: usize,
    pub offset: usize,
    pub size: usize,
    pub start: i64,
    pub end: i64,
}

/// Where each buffer lies.
#[allow(dead_code)]
pub const PLAN: [Placed; {{ lines.len() }}] = [
{%- for line in lines %}
    Placed { tier: {{ line.tier }}, offset: {{ line.offset }}, size: {{ line.size }}, start: {{ line.start }}, end: {{ line.end }} }, // {{ line.remark }}
{%- endfor %}
];

/// Indices into [`PLAN`].
#[allow(dead_code)]
pub mod index {
{%- for line in lines %}
    pub const {{ line.name }}: usize = {{ loop.index0 }};
{%- endfor %}
}
