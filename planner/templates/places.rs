/// One place: its tier, its offset in the tier's arena, bytes, and the time steps `start..end` at which it is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub tier: usize,
    pub offset: usize,
    pub size: usize,
    pub start: i64,
    pub end: i64,
}

/// Where each buffer lies.
pub const PLAN: [Placed; {{ lines.len() }}] = [
{%- for line in lines %}
    Placed { tier: {{ line.tier }}, offset: {{ line.offset }}, size: {{ line.size }}, start: {{ line.start }}, end: {{ line.end }} }, // {{ line.remark }}
{%- endfor %}
];

/// Indices into [`PLAN`].
pub mod index {
{%- for line in lines %}
    pub const {{ line.name }}: usize = {{ loop.index0 }};
{%- endfor %}
}
