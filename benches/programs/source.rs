//! A compiler's front end: Rust source text is parsed with syn, its tree is changed, and laid out as text again.

use syn::visit_mut::{self, VisitMut};

/// Renames everything that is lower case and turns the operands of sums around.
struct Rewrite(u64);

impl VisitMut for Rewrite {
    fn visit_ident_mut(&mut self, ident: &mut syn::Ident) {
        let name = ident.to_string();
        if name.len() > 6 && name.bytes().all(|byte| byte.is_ascii_lowercase()) {
            *ident = syn::Ident::new(&format!("{name}_{}", name.len()), ident.span());
            self.0 += 1;
        }
    }

    fn visit_expr_binary_mut(&mut self, sum: &mut syn::ExprBinary) {
        visit_mut::visit_expr_binary_mut(self, sum);
        if matches!(sum.op, syn::BinOp::Add(_)) {
            let left = sum.left.clone();
            sum.left = std::mem::replace(&mut sum.right, left);
            self.0 += 1;
        }
    }
}

/// Runs it; the changes and the bytes of text.
pub fn run(percent: usize) -> u64 {
    let sources = super::texts("src", "rs", percent);
    let mut bytes = 0;
    let mut rewrite = Rewrite(0);
    let mut trees = Vec::new();
    for source in &sources {
        let mut tree = syn::parse_file(source).expect("the sources are Rust");
        rewrite.visit_file_mut(&mut tree);
        trees.push(tree);
    }
    for tree in &trees {
        bytes += prettyplease::unparse(tree).len();
    }
    rewrite.0 + bytes as u64
}
