//! A node's attributes and inputs, with errors that name missing ones.

use std::collections::HashMap;

use super::super::proto::{Attribute, Node};
use super::fault::Fault;
use super::value::{Data, Limits, Value};

/// The attributes that a call passes to the function around a node.
pub type Given<'m> = HashMap<&'m str, &'m Attribute>;

/// Returns a node's attribute, or the value that the function's call passes for it.
pub fn attribute<'m>(node: &'m Node, given: &Given<'m>, name: &str) -> Option<&'m Attribute> {
    let own = node.attribute.iter().find(|attribute| attribute.name == name)?;
    if own.ref_attr_name.is_empty() { Some(own) } else { given.get(own.ref_attr_name.as_str()).copied() }
}

pub struct Context<'a, 'm> {
    pub node: &'m Node,
    pub inputs: &'a [Option<&'a Value>],
    pub given: &'a Given<'m>,
    pub limits: &'a Limits<'a>,
}

impl<'a, 'm> Context<'a, 'm> {
    pub fn op(&self) -> &'m str {
        &self.node.op_type
    }

    pub fn attribute(&self, name: &str) -> Option<&'m Attribute> {
        attribute(self.node, self.given, name)
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    /// Returns the element type that an attribute names.
    pub fn dtype(&self, name: &str, default: i32) -> i32 {
        self.attribute(name).map_or(default, |attribute| i32::try_from(attribute.i).unwrap_or(0))
    }

    pub fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    pub fn floats(&self, name: &str) -> Option<&'m [f32]> {
        self.attribute(name).map(|attribute| attribute.floats.as_slice())
    }

    pub fn text(&self, name: &str) -> String {
        self.attribute(name)
            .map_or(String::new(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    pub fn optional(&self, n: usize) -> Option<&'a Value> {
        self.inputs.get(n).copied().flatten()
    }

    pub fn input(&self, n: usize) -> Result<&'a Value, Fault> {
        self.optional(n).ok_or_else(|| format!("input {n} is missing").into())
    }

    /// Returns all inputs, none of which may be missing.
    pub fn all(&self) -> Result<Vec<&'a Value>, Fault> {
        (0..self.inputs.len()).map(|n| self.input(n)).collect()
    }

    /// Returns the elements of an input whose values must be known.
    pub fn data(&self, n: usize) -> Result<&'a Data, Fault> {
        let input = &self.input(n)?.data;
        match input {
            Data::Missing(why) => Err(Fault::Unknown(format!("input {n} is not known: {why}"))),
            Data::Unknown => Err(Fault::Unknown(format!("input {n} is not known before the model runs"))),
            known => Ok(known),
        }
    }

    /// Returns the integers of an input whose values must be known.
    pub fn known(&self, n: usize) -> Result<&'a [i64], Fault> {
        self.data(n)?.ints().ok_or_else(|| format!("input {n} holds no integers").into())
    }

    /// Returns the only integer of an input whose value must be known.
    pub fn scalar(&self, n: usize) -> Result<i64, Fault> {
        match self.known(n)? {
            &[one] => Ok(one),
            more => Err(format!("input {n} has {} elements, not one", more.len()).into()),
        }
    }

    /// Returns a list that older opsets give as an attribute and newer ones as an input.
    pub fn list(&self, name: &str, n: usize) -> Result<Option<&'a [i64]>, Fault>
    where
        'm: 'a,
    {
        match (self.ints(name), self.optional(n)) {
            (Some(ints), _) => Ok(Some(ints)),
            (None, Some(_)) => self.known(n).map(Some),
            (None, None) => Ok(None),
        }
    }
}
