//! Writes the Rust code of the advised heap.

use super::classes::Classes;

/// Returns the code of a pool of `most` blocks of `size` bytes.
pub fn fixed_pool(size: usize, most: usize) -> String {
    let (words, groups) = (size.div_ceil(8).max(1), most.div_ceil(32));
    let groups = if groups > 1 { format!(", {groups}") } else { String::new() };
    format!(
        "use allotment::fixed::FixedPool;\n\n// With your own type instead of `[u64; {words}]`.\n\
         static POOL: FixedPool<[u64; {words}], {most}{groups}> = FixedPool::new();\n"
    )
}

/// Returns the code of a heap in an arena of `arena` bytes that keeps `count` blocks for requests of `least` to `most` bytes.
pub fn kept(arena: usize, count: usize, least: usize, most: usize) -> String {
    format!(
        "use allotment::{{Heap, Kept, heap}};\n\n#[global_allocator]\n\
         static HEAP: Kept<Heap, {count}> = Kept::new(heap!({arena}), {least}, {most});\n"
    )
}

/// The placement of a heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A placement by its name, and its type in `Heap<..>`.
    Named(&'static str, &'static str),
    /// A slab with fitted classes.
    Slab(Classes),
    /// A `TinyHeap`.
    Tiny,
    /// A `Growing`, which requests its memory from the system.
    Growing,
}

impl Choice {
    /// Returns the name for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Named(id, _) => id,
            Self::Slab(_) => "slab-fitted",
            Self::Tiny => "tiny-heap",
            Self::Growing => "growing",
        }
    }

    /// Returns the heap's type as code, for an arena of `arena` bytes.
    pub fn code(&self, arena: usize) -> String {
        match self {
            Self::Named(_, code) => format!("Heap<{code}>"),
            Self::Slab(_) => "Heap<Slab<Sizes>>".into(),
            Self::Tiny => format!("TinyHeap<{arena}>"),
            Self::Growing => "Growing".into(),
        }
    }

    /// Returns the code of a global allocator, ready to paste into a module.
    pub fn source(&self, arena: usize) -> String {
        let code = self.code(arena);
        let base = |name: &'static str| name.split('<').next().unwrap_or_default();
        let (mut names, value) = match self {
            Self::Named(_, "MicroTlsf") => {
                (vec!["Heap", "heap", "placement::MicroTlsf"], format!("heap!({arena})"))
            }
            Self::Named(_, code) => (vec!["Heap", base(code), "heap"], format!("heap!({arena})")),
            Self::Slab(_) => (vec!["Heap", "Slab", "heap", "placement::Classes"], format!("heap!({arena})")),
            Self::Tiny => (vec!["TinyHeap"], "TinyHeap::new()".into()),
            Self::Growing => (vec!["heap", "os::Growing"], "heap!()".into()),
        };
        names.sort_by_key(|name| (name.starts_with(char::is_lowercase), *name));
        let imports = match names.as_slice() {
            [one] => (*one).to_owned(),
            names => format!("{{{}}}", names.join(", ")),
        };
        let mut source = format!("use allotment::{imports};\n\n");
        if *self == Self::Growing {
            source = format!("// With the feature `std` of allotment.\n{source}");
        }
        if let Self::Slab(Classes { sizes }) = self {
            source += &format!(
                "struct Sizes;\nimpl Classes for Sizes {{\n    const SIZES: &'static [usize] = &{sizes:?};\n}}\n\n"
            );
        }
        source + &format!("#[global_allocator]\nstatic HEAP: {code} = {value};\n")
    }
}
