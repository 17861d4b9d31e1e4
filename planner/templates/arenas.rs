{{ head }}
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

{% include "places.rs" %}
{%- for Arena { tier, bytes, align, section } in arenas %}

/// The memory of tier {{ tier }}; what is in it at first is not known.
#[allow(dead_code)]
#[repr(C, align({{ align }}))]
pub struct Arena{{ tier }}(UnsafeCell<[MaybeUninit<u8>; {{ bytes }}]>);

// SAFETY: the memory is reached by `arena` alone, whose callers keep to the plan.
unsafe impl Sync for Arena{{ tier }} {}

/// The arena of tier {{ tier }}: {{ bytes }} bytes.
{%- if let Some(name) = section %}
#[unsafe(link_section = "{{ name }}")]
{%- endif %}
#[allow(dead_code)]
pub static ARENA_{{ tier }}: Arena{{ tier }} = Arena{{ tier }}(UnsafeCell::new([MaybeUninit::uninit(); {{ bytes }}]));
{%- endfor %}

/// Returns the first byte of a tier's arena; null for a tier that is not there.
#[allow(dead_code)]
pub fn arena(tier: usize) -> *mut u8 {
    match tier {
{%- for arena in arenas %}
        {{ arena.tier }} => ARENA_{{ arena.tier }}.0.get().cast(),
{%- endfor %}
        _ => core::ptr::null_mut(),
    }
}
{%- if !cache_lines.is_empty() %}

/// Returns the bytes of a tier's cache line, which no two of its buffers share; 0 for a tier without a cache.
#[allow(dead_code)]
pub const fn cache_line(tier: usize) -> usize {
    match tier {
{%- for (tier, bytes) in cache_lines %}
        {{ tier }} => {{ bytes }},
{%- endfor %}
        _ => 0,
    }
}
{%- endif %}

/// Returns the first byte of buffer `n` of [`PLAN`], which is the buffer's while it is live.
#[allow(dead_code)]
pub fn address(n: usize) -> *mut u8 {
    arena(PLAN[n].tier).wrapping_add(PLAN[n].offset)
}
