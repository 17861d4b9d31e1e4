//! Functions that the model defines: their nodes replace each call.

use std::collections::HashSet;

use super::bodies::Outer;
use super::infer::{Given, attribute};
use super::proto::{Function, Node};
use super::{Frame, Known, OnnxError, Reader, Result, Scope, Value};
use crate::graph::Kind;

fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// Returns the key by which nodes call a function.
pub fn key(function: &Function) -> [&str; 3] {
    [domain(&function.domain), &function.name, &function.overload]
}

impl<'m> Reader<'m> {
    /// Returns the function that a node calls, if any.
    pub(super) fn function(&self, node: &'m Node) -> Option<&'m Function> {
        self.functions.get(&[domain(&node.domain), &node.op_type, &node.overload]).copied()
    }

    /// Adds a function's nodes in place of a call.
    pub(super) fn call(
        &mut self,
        outer: &Outer<'_, 'm>,
        function: &'m Function,
        scope: &mut Scope<'_, 'm>,
    ) -> Result {
        if outer.inputs.len() > function.input.len() || outer.node.output.len() > function.output.len() {
            return Err(outer.fails("it gives or takes more than its function does"));
        }
        let defaults = function.attribute_proto.iter().map(|value| (value.name.as_str(), value));
        let own = outer.node.attribute.iter();
        let own = own.filter_map(|own| {
            Some((own.name.as_str(), attribute(outer.node, outer.frame.given, &own.name)?))
        });
        let given: Given = defaults.chain(own).collect();
        let frame = Frame {
            prefix: self.prefix(outer.frame, outer.name, ""),
            infos: [&function.value_info, &[]],
            given: &given,
            depth: outer.frame.depth + 1,
            function: true,
        };
        self.charge(&frame, 64 * (function.input.len() + given.len()))?;
        // A function sees no names from around its call.
        let mut inner = Scope::default();
        for (n, name) in function.input.iter().enumerate() {
            inner.names.insert(name, outer.inputs.get(n).cloned().flatten());
        }
        let from = self.made.tensors.len();
        self.nodes(&function.node, &frame, &mut inner)?;
        let results = function.output.iter().take(outer.node.output.len());
        let results = results.map(|name| inner.get(name).flatten().cloned()).collect();
        self.bind(outer, from, results, scope)
    }

    /// Binds a node's outputs to the results of the nodes that replace it, whose tensors begin with number `from`.
    pub(super) fn bind(
        &mut self,
        outer: &Outer<'_, 'm>,
        from: usize,
        results: Vec<Known>,
        scope: &mut Scope<'_, 'm>,
    ) -> Result {
        let mut renamed = HashSet::new();
        for (name, known) in outer.node.output.iter().zip(results).filter(|(name, _)| !name.is_empty()) {
            let (number, value): (usize, Value) =
                known.ok_or_else(|| outer.fails(format!("nothing in it makes `{name}`")))?;
            let full = self.name(outer.frame, name);
            if !self.names.insert(full.clone()) {
                return Err(OnnxError::Twice(full));
            }
            let tensor = &mut self.made.tensors[number];
            if number >= from && tensor.kind != Kind::Input && renamed.insert(number) {
                tensor.name = full;
            }
            scope.names.insert(name, Some((number, value)));
        }
        Ok(())
    }
}
