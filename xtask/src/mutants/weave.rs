//! Puts changes into the text of a file, each behind a switch.
//!
//! `a + b` becomes `(if crate::switch::on(7) { (a) - (b) } else { a + b })`. A function that is to return a value begins with
//! `if crate::switch::on(8) { return 0; }`, and an arm that is to be left out has the guard `if !crate::switch::on(9)`.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::change::{Change, Genre};

/// The call that asks for a change; its number follows.
const SWITCH: &str = "crate::switch::on(";

/// A file with switches.
#[derive(Default)]
pub struct Woven {
    pub text: String,
    places: Vec<Place>,
    /// Changes of what is computed when the library is built.
    pub constant: Vec<u32>,
    /// Changes in functions that may be called when the library is built.
    pub perhaps_constant: Vec<u32>,
}

/// A part of the text.
struct Place {
    range: Range<usize>,
    /// The changes of an expression; none for a function.
    changes: Vec<u32>,
    /// Only one change, not what surrounds it.
    single: bool,
}

/// What is done with a part of the original.
struct Site {
    range: Range<usize>,
    edit: Edit,
}

enum Edit {
    /// Text that is put in front.
    Insert(u32, String),
    /// The text is used instead of the expression if the change is on.
    Instead(u32, String),
    /// A function, which is left as it is.
    Function,
}

/// Weaves changes, which are numbered, into a file.
///
/// # Errors
/// If the file cannot be parsed, or has no such places.
pub fn weave(text: &str, changes: &[(u32, &Change)]) -> Result<Woven> {
    let mut finder = Finder { text, ..Finder::default() };
    for &(number, change) in changes {
        let position = |position: &super::change::Position| {
            position.offset(text).with_context(|| format!("no such place: {}", change.name))
        };
        let range = position(&change.span.start)?..position(&change.span.end)?;
        finder.wanted.entry((range.start, change.genre)).or_default().push((number, change, range));
    }
    finder.visit_file(&syn::parse_file(text)?);
    let lost = finder.wanted.values().flatten().next();
    ensure!(lost.is_none(), "no such place: {}", lost.map_or("", |(_, change, _)| &change.name));
    // What is around comes before what is inside, and insertions before what begins at the same place.
    finder.sites.sort_by_key(|site| (site.range.start, !site.range.is_empty(), usize::MAX - site.range.end));
    let woven =
        Woven { constant: finder.constant, perhaps_constant: finder.perhaps_constant, ..Woven::default() };
    let mut writer = Writer { text, sites: &finder.sites, woven };
    writer.write(0..text.len());
    Ok(writer.woven)
}

/// Changes with their numbers and places.
type Numbered<'a> = Vec<(u32, &'a Change, Range<usize>)>;

/// Finds the sites of the changes.
#[derive(Default)]
struct Finder<'a> {
    text: &'a str,
    /// The changes that begin at a place.
    wanted: HashMap<(usize, Genre), Numbered<'a>>,
    sites: Vec<Site>,
    constant: Vec<u32>,
    perhaps_constant: Vec<u32>,
    /// Inside so many constants.
    constants: usize,
    /// Inside a `const fn`.
    const_function: bool,
}

impl<'a> Finder<'a> {
    fn text(&self, node: &impl Spanned) -> &'a str {
        &self.text[node.span().byte_range()]
    }

    /// Returns the changes of a genre that begin where `node` does.
    fn take(&mut self, node: &impl Spanned, genre: Genre) -> Numbered<'a> {
        let found = self.wanted.remove(&(node.span().byte_range().start, genre)).unwrap_or_default();
        let list = match (self.constants, self.const_function) {
            (1.., _) => &mut self.constant,
            (0, true) => &mut self.perhaps_constant,
            (0, false) => return found,
        };
        list.extend(found.iter().map(|(number, ..)| number));
        found
    }

    fn instead(&mut self, of: &impl Spanned, number: u32, text: String) {
        self.sites.push(Site { range: of.span().byte_range(), edit: Edit::Instead(number, text) });
    }

    fn insert(&mut self, at: usize, number: u32, text: String) {
        self.sites.push(Site { range: at..at, edit: Edit::Insert(number, text) });
    }

    fn function(
        &mut self,
        whole: &impl Spanned,
        signature: &syn::Signature,
        body: &syn::Block,
        visit: impl FnOnce(&mut Self),
    ) {
        let outside = (self.constants, self.const_function);
        (self.constants, self.const_function) = (0, signature.constness.is_some());
        self.sites.push(Site { range: whole.span().byte_range(), edit: Edit::Function });
        if let Some(first) = body.stmts.first() {
            let start = first.span().byte_range().start;
            for (number, change, _) in self.take(first, Genre::FnValue) {
                let text = format!("if {SWITCH}{number}) {{ return {}; }} ", change.replacement);
                self.insert(start, number, text);
            }
        }
        visit(self);
        (self.constants, self.const_function) = outside;
    }

    fn in_constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constants += 1;
        visit(self);
        self.constants -= 1;
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(node, &node.sig, &node.block, |this| visit::visit_item_fn(this, node));
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(node, &node.sig, &node.block, |this| visit::visit_impl_item_fn(this, node));
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        let Some(body) = &node.default else { return };
        self.function(node, &node.sig, body, |this| visit::visit_trait_item_fn(this, node));
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        for (number, change, _) in self.take(&node.op, Genre::BinaryOperator) {
            let (left, right) = (self.text(&node.left), self.text(&node.right));
            self.instead(node, number, format!("({left}) {} ({right})", change.replacement));
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        for (number, ..) in self.take(&node.op, Genre::UnaryOperator) {
            let operand = self.text(&node.expr).to_owned();
            self.instead(node, number, operand);
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        for (number, ..) in self.take(node, Genre::MatchArm) {
            self.insert(node.pat.span().byte_range().end, number, format!(" if !{SWITCH}{number})"));
        }
        if let Some((_, guard)) = &node.guard {
            for (number, change, _) in self.take(guard, Genre::MatchArmGuard) {
                self.instead(guard, number, change.replacement.clone());
            }
        }
        visit::visit_arm(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        for field in &node.fields {
            for (number, _, range) in self.take(field, Genre::StructField) {
                let whole = node.span().byte_range();
                let text = [&self.text[whole.start..range.start], &self.text[range.end..whole.end]].concat();
                self.instead(node, number, text);
            }
        }
        visit::visit_expr_struct(self, node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.in_constant(|this| visit::visit_item_const(this, node));
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.in_constant(|this| visit::visit_impl_item_const(this, node));
    }

    fn visit_trait_item_const(&mut self, node: &'ast syn::TraitItemConst) {
        self.in_constant(|this| visit::visit_trait_item_const(this, node));
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.in_constant(|this| visit::visit_item_static(this, node));
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.in_constant(|this| visit::visit_expr_const(this, node));
    }

    fn visit_variant(&mut self, node: &'ast syn::Variant) {
        self.in_constant(|this| visit::visit_variant(this, node));
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.in_constant(|this| visit::visit_type_array(this, node));
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
        self.in_constant(|this| this.visit_expr(&node.len));
    }

    fn visit_const_param(&mut self, node: &'ast syn::ConstParam) {
        self.in_constant(|this| visit::visit_const_param(this, node));
    }

    fn visit_generic_argument(&mut self, node: &'ast syn::GenericArgument) {
        self.in_constant(|this| visit::visit_generic_argument(this, node));
    }
}

/// Writes the text with its switches.
struct Writer<'a> {
    text: &'a str,
    /// What has not been written.
    sites: &'a [Site],
    woven: Woven,
}

impl Writer<'_> {
    /// Writes a part of the original, and the sites in it.
    fn write(&mut self, part: Range<usize>) {
        let mut done = part.start;
        while let Some(site) = self.sites.first().filter(|site| site.range.end <= part.end) {
            self.woven.text += &self.text[done..site.range.start];
            done = site.range.end;
            self.site();
        }
        self.woven.text += &self.text[done..part.end];
    }

    /// Writes the next site, and those inside it.
    fn site(&mut self) {
        let [site, rest @ ..] = self.sites else { return };
        let start = self.woven.text.len();
        let changes = match &site.edit {
            Edit::Insert(number, text) => {
                self.sites = rest;
                self.woven.text += text;
                vec![*number]
            }
            Edit::Function => {
                self.sites = rest;
                self.write(site.range.clone());
                Vec::new()
            }
            Edit::Instead(..) => self.expression(&site.range),
        };
        let single = matches!(site.edit, Edit::Insert(..));
        self.woven.places.push(Place { range: start..self.woven.text.len(), changes, single });
    }

    /// Writes an expression with its alternatives, and returns their numbers.
    fn expression(&mut self, range: &Range<usize>) -> Vec<u32> {
        let mut changes = Vec::new();
        self.woven.text.push('(');
        while let [Site { range: next, edit: Edit::Instead(number, text) }, rest @ ..] = self.sites {
            if next != range {
                break;
            }
            self.sites = rest;
            self.woven.text += &format!("if {SWITCH}{number}) {{ ");
            let start = self.woven.text.len();
            self.woven.text += text;
            let range = start..self.woven.text.len();
            self.woven.places.push(Place { range, changes: vec![*number], single: true });
            self.woven.text += " } else ";
            changes.push(*number);
        }
        self.woven.text += "{ ";
        self.write(range.clone());
        self.woven.text += " })";
        changes
    }
}

impl Woven {
    /// Returns the changes to blame for an error, of which the compiler names these places.
    pub fn blame(&self, spans: &[Range<usize>]) -> BTreeSet<u32> {
        let around = |span: &Range<usize>, single: bool| {
            let places = self.places.iter().filter(move |place| place.single || !single);
            let around = places.filter(|place| is_inside(span, &place.range));
            around.min_by_key(|place| place.range.len())
        };
        let named = spans.iter().find_map(|span| around(span, true));
        let Some(place) = named.or_else(|| spans.iter().find_map(|span| around(span, false))) else {
            return BTreeSet::new();
        };
        if place.changes.is_empty() {
            let inside = self.places.iter().filter(|other| is_inside(&other.range, &place.range));
            return inside.flat_map(|place| &place.changes).copied().collect();
        }
        place.changes.iter().copied().collect()
    }

    /// Returns the switch that is called by the path here, or by the last part of one.
    pub fn switch_at(&self, path: &Range<usize>) -> Option<u32> {
        let number = self.text.get(path.end..)?.strip_prefix('(')?;
        number.split_once(')')?.0.parse().ok()
    }
}

fn is_inside(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::super::change::tests::change;
    use super::*;

    /// Weaves changes of one line, which are numbered from 1; `on(1)` stands for the switch.
    fn woven(text: &str, changes: &[Change]) -> Woven {
        let numbered: Vec<_> = (1..).zip(changes).collect();
        weave(text, &numbered).unwrap()
    }

    fn text(woven: &Woven) -> String {
        woven.text.replace(SWITCH, "on(")
    }

    #[test]
    fn operators_have_alternatives_and_keep_their_operands_together() {
        let source = "fn f() -> u8 { a + b * c }";
        let changes = [
            change(Genre::BinaryOperator, 17, 1, "-"),
            change(Genre::BinaryOperator, 17, 1, "*"),
            change(Genre::BinaryOperator, 21, 1, "+"),
        ];
        let woven = woven(source, &changes);
        assert_eq!(
            text(&woven),
            "fn f() -> u8 { (if on(1) { (a) - (b * c) } else if on(2) { (a) * (b * c) } \
             else { a + (if on(3) { (b) + (c) } else { b * c }) }) }"
        );
    }

    #[test]
    fn functions_arms_guards_operators_and_fields_are_changed() {
        let source = "fn f() { match a { 1 => 2, x if !x => 3, _ => S { b: 4, ..c } } }";
        let changes = [
            change(Genre::FnValue, 9, 54, "()"),
            change(Genre::MatchArm, 19, 7, ""),
            change(Genre::MatchArmGuard, 32, 2, "true"),
            change(Genre::UnaryOperator, 32, 1, ""),
            change(Genre::StructField, 50, 5, ""),
        ];
        assert_eq!(
            text(&woven(source, &changes)),
            "fn f() { if on(1) { return (); } match a { 1 if !on(2) => 2, \
             x if (if on(3) { true } else if on(4) { x } else { !x }) => 3, \
             _ => (if on(5) { S {  ..c } } else { S { b: 4, ..c } }) } }"
        );
    }

    #[test]
    fn errors_are_blamed_on_the_smallest_part() {
        let source = "fn f() -> u8 { a + b }";
        let changes = [change(Genre::BinaryOperator, 17, 1, "-"), change(Genre::FnValue, 15, 5, "0")];
        let woven = woven(source, &changes);
        let at = |text: &str| woven.text.find(text).unwrap();
        let blame = |range| Vec::from_iter(woven.blame(&[range]));
        assert_eq!(blame(at("(a) -")..at("(a) -") + 3), [1]);
        assert_eq!(blame(at("return 0")..at("return 0") + 8), [2]);
        assert_eq!(blame(at("a + b")..at("a + b") + 5), [1], "what an alternative is to match");
        assert_eq!(blame(at("u8")..at("u8") + 2), [1, 2], "all of a function");
        let path = at(SWITCH)..at(SWITCH) + SWITCH.len() - 1;
        assert_eq!(woven.switch_at(&path), Some(2));
    }

    #[test]
    fn what_is_computed_when_the_library_is_built_is_told_apart() {
        let source = "const A: u8 = 1 + 2; const fn f() -> u8 { 1 + 2 } fn g() -> [u8; 1 + 2] { 1 + 2 } \
            struct H<const I: u8 = { 1 + 2 }>;";
        let changes = source.match_indices('+').map(|(at, _)| change(Genre::BinaryOperator, at, 1, "-"));
        let changes: Vec<_> = changes.collect();
        let woven = woven(source, &changes);
        assert_eq!((woven.constant, woven.perhaps_constant), (vec![1, 3, 5], vec![2]));
    }

    #[test]
    fn a_change_of_something_else_is_refused() {
        let change = change(Genre::BinaryOperator, 0, 1, "-");
        assert!(weave("fn f() {}", &[(1, &change)]).is_err());
    }
}
