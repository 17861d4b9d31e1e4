//! The size check of `cargo xtask lint`: how many items of the library are public, and whether each has a name of its own.
//!
//! Every `pub` counts, because the compiler refuses one that cannot be reached (`unreachable_pub` in `src/lib.rs`). Methods count,
//! those of traits do not: they belong to their trait. Items that only our macros name are hidden from the documentation and do not
//! count either.

use crate::layers::sources;
use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The most public types and traits. It goes up only with a new capability.
const TYPES: usize = 235;
/// The most public functions, like [`TYPES`].
const FUNCTIONS: usize = 682;

/// Names that types of several modules may have, because the modules are worlds of their own and are not imported together: heaps
/// and pools, pools and plans, and the device that is simulated, of CUDA or of Vulkan. No other name may be that of two types.
const SHARED: [&str; 8] =
    ["Buffer", "Device", "DeviceMemory", "Error", "Event", "HostMemory", "OutOfMemory", "Stream"];

/// Public items of one kind or another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Surface {
    /// Structs, enums, unions and traits. An alias names one of them.
    types: Vec<String>,
    functions: usize,
}

impl Surface {
    /// Returns the names, ascending, that several types have although they may not.
    fn ambiguous(&self) -> Vec<&str> {
        let mut counts = BTreeMap::<&str, usize>::new();
        for name in &self.types {
            *counts.entry(name).or_default() += 1;
        }
        let several = counts.into_iter().filter(|&(name, count)| count > 1 && !SHARED.contains(&name));
        several.map(|(name, _)| name).collect()
    }
}

/// Counts the public items in `src` and in `event`, which is part of it for users, prints the counts, and returns how many of them are above their ceilings. Prints and counts each
/// name of several types as well.
///
/// # Errors
///
/// If a file cannot be read or parsed.
pub fn lint() -> Result<usize> {
    let mut all = Surface::default();
    for (name, text) in sources::sources("src")?.into_iter().chain(sources::sources("event/src")?) {
        let tokens = TokenStream::from_str(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        count(tokens, &mut all);
    }
    let types = all.types.len();
    println!(
        "public items: {types} types and traits (at most {TYPES}), {} functions (at most {FUNCTIONS})",
        all.functions
    );
    let ambiguous = all.ambiguous();
    for name in &ambiguous {
        println!("src: two public types have the name `{name}`");
    }
    Ok(usize::from(types > TYPES) + usize::from(all.functions > FUNCTIONS) + ambiguous.len())
}

/// Adds the public items in `tokens` to `surface`, without those that are compiled for tests only or hidden.
fn count(tokens: TokenStream, surface: &mut Surface) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            rest if sources::is_for_tests(rest) || is_hidden(rest) => at += sources::length_of_item(rest),
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
                if let [what, TokenTree::Ident(name), ..] = &rest[begin..] {
                    match &*what.to_string() {
                        "struct" | "enum" | "union" | "trait" => surface.types.push(name.to_string()),
                        "fn" => surface.functions += 1,
                        _ => {}
                    }
                }
            }
            [TokenTree::Group(group), ..] => count(group.stream(), surface),
            _ => {}
        }
        at += 1;
    }
}

/// Returns whether `tokens` begin with the attribute that hides an item from the documentation.
fn is_hidden(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(attribute), ..] = tokens else { return false };
    hash.as_char() == '#' && attribute.to_string().replace(' ', "") == "[doc(hidden)]"
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
            #[doc(hidden)] pub struct V<const N: usize> where W<N>: X { inner: [u8; N] }
            #[doc(hidden)] #[inline] pub const fn m() {}
            macro_rules! m { () => { pub struct U; } }
        ";
        let mut surface = Surface::default();
        count(TokenStream::from_str(text).unwrap(), &mut surface);
        let types = ["A", "T", "D", "U"].map(str::to_owned).to_vec();
        assert_eq!(surface, Surface { types, functions: 4 });
    }

    #[test]
    fn two_types_of_one_name_are_found() {
        let text = "
            pub mod a { pub struct Buffer; pub struct Order; pub enum Rule {} pub type Fit = Rule; struct One; }
            pub mod b { pub trait Buffer {} pub trait Order {} pub fn Rule() {} pub struct Fit; pub struct One; }
        ";
        let mut surface = Surface::default();
        count(TokenStream::from_str(text).unwrap(), &mut surface);
        assert_eq!(surface.ambiguous(), ["Order"]);
    }

    #[test]
    fn the_library_stays_small() {
        assert_eq!(lint().unwrap(), 0);
    }
}
