//! The Rust code of the advised heap.

use super::classes::Classes;

/// The placement of a heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A placement by its name, and its type in `Heap<..>`.
    Named(&'static str, &'static str),
    /// A slab with fitted classes.
    Slab(Classes),
}

impl Choice {
    /// Returns the name for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Named(id, _) => id,
            Self::Slab(_) => "slab-fitted",
        }
    }

    /// Returns the placement's type as code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Named(_, code) => code,
            Self::Slab(_) => "Slab<InBand<u32>, Sizes>",
        }
    }

    /// Returns the code of a global allocator, ready to paste into a module.
    pub fn source(&self, arena: usize) -> String {
        let code = self.code();
        let base = code.split('<').next().unwrap_or_default();
        let mut names = ["Heap", base, "heap"];
        names.sort_by_key(|name| (name.starts_with(char::is_lowercase), *name));
        let mut imports = names.join(", ");
        if code.contains("InBand") {
            imports += ", meta::InBand";
        }
        let mut source = match self {
            Self::Slab(_) => format!("use allotment::{{{imports}, placement::Classes}};\n\n"),
            Self::Named(..) => format!("use allotment::{{{imports}}};\n\n"),
        };
        if let Self::Slab(Classes { sizes, objects }) = self {
            source += &format!(
                "struct Sizes;\nimpl Classes for Sizes {{\n    const SIZES: &'static [usize] = &{sizes:?};\n    \
                 const OBJECTS: usize = {objects};\n}}\n\n"
            );
        }
        source + &format!("#[global_allocator]\nstatic HEAP: Heap<{code}> = heap!({arena});\n")
    }
}
