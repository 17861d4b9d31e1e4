//! The size check of `cargo xtask lint`: how many items of the library are public.
//!
//! Every `pub` counts, because the compiler refuses one that cannot be reached (`unreachable_pub` in `src/lib.rs`). Methods count,
//! those of traits do not: they belong to their trait.

use crate::layers;
use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::str::FromStr;

/// The most public types and traits. It only goes down.
const TYPES: usize = 279;
/// The most public functions. It only goes down.
const FUNCTIONS: usize = 585;

/// Public items of one kind or another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Surface {
    /// Structs, enums, unions and traits. An alias names one of them.
    types: usize,
    functions: usize,
}

/// Counts the public items in `src`, prints the counts, and returns how many of them are above their ceilings.
///
/// # Errors
///
/// If a file cannot be read or parsed.
pub fn lint() -> Result<usize> {
    let mut all = Surface::default();
    for (name, text) in layers::sources()? {
        let tokens = TokenStream::from_str(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        count(tokens, &mut all);
    }
    println!(
        "public items: {} types and traits (at most {TYPES}), {} functions (at most {FUNCTIONS})",
        all.types, all.functions
    );
    Ok(usize::from(all.types > TYPES) + usize::from(all.functions > FUNCTIONS))
}

/// Adds the public items in `tokens` to `surface`, without those that are compiled for tests only.
fn count(tokens: TokenStream, surface: &mut Surface) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            rest if layers::is_for_tests(rest) => at += layers::length_of_item(rest),
            // `pub(crate)` and its like are not public.
            [TokenTree::Ident(word), TokenTree::Group(scope), ..]
                if word == "pub" && scope.delimiter() == Delimiter::Parenthesis =>
            {
                at += 1;
            }
            [TokenTree::Ident(word), rest @ ..] if word == "pub" => {
                let qualifiers = ["const", "unsafe", "async", "extern"];
                let is_qualifier = |token: &TokenTree| match token {
                    TokenTree::Ident(word) => qualifiers.contains(&&*word.to_string()),
                    token => matches!(token, TokenTree::Literal(_)),
                };
                let begin = rest.iter().position(|token| !is_qualifier(token)).unwrap_or(rest.len());
                // Anything else than a name behind it: a field of that name.
                let what = match &rest[begin..] {
                    [what, TokenTree::Ident(_), ..] => what.to_string(),
                    _ => String::new(),
                };
                match &*what {
                    "struct" | "enum" | "union" | "trait" => surface.types += 1,
                    "fn" => surface.functions += 1,
                    _ => {}
                }
            }
            [TokenTree::Group(group), ..] => count(group.stream(), surface),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_public_is_counted() {
        let text = "
            pub struct A { pub field: u8, pub union: u8 }
            pub(crate) struct B;
            pub unsafe trait T { fn method(); }
            pub type C = A;
            pub enum D {}
            pub const N: usize = 1;
            pub use a::E;
            pub mod inner { pub const unsafe fn f() {} pub(super) fn g() {} fn h() {} }
            impl A { pub const fn f() {} pub const G: usize = 1; pub extern \"C\" fn g() {} }
            #[cfg(test)] mod tests { pub struct X; pub fn f() {} }
            #[cfg(test)] pub fn k() {}
            #[inline] pub fn l() {}
            macro_rules! m { () => { pub struct U; } }
        ";
        let mut surface = Surface::default();
        count(TokenStream::from_str(text).unwrap(), &mut surface);
        assert_eq!(surface, Surface { types: 4, functions: 4 });
    }

    #[test]
    fn the_library_stays_small() {
        assert_eq!(lint().unwrap(), 0);
    }
}
