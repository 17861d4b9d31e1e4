//! Reads plain values of Python's `pickle`: dictionaries, lists, tuples, texts, numbers, truth values and `None`.
//!
//! No other operation is supported, so a hostile file cannot cause a call. Values lie in one list and refer to each other by number, so
//! nesting of any depth needs no recursion.

use std::collections::HashMap;

/// Largest number of values.
const VALUES: usize = 1 << 27;

/// A value, whose parts are the numbers of other values.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// A list or a tuple.
    List(Vec<u32>),
    /// Keys and values.
    Dict(Vec<(u32, u32)>),
}

/// All values of a file.
pub struct Pickle {
    values: Vec<Value>,
    top: u32,
}

struct Machine<'a> {
    bytes: &'a [u8],
    values: Vec<Value>,
    stack: Vec<u32>,
    marks: Vec<usize>,
    memo: HashMap<u32, u32>,
}

impl Pickle {
    /// Reads a file.
    ///
    /// # Errors
    /// The reason for which it is refused.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let (stack, marks) = (Vec::new(), Vec::new());
        let mut machine = Machine { bytes, values: Vec::new(), stack, marks, memo: HashMap::new() };
        let top =
            machine.run().map_err(|why| format!("byte {}: {why}", bytes.len() - machine.bytes.len()))?;
        Ok(Self { values: machine.values, top })
    }

    /// Returns the outermost value.
    pub fn top(&self) -> &Value {
        self.value(self.top)
    }

    /// Returns a value.
    pub fn value(&self, number: u32) -> &Value {
        &self.values[number as usize]
    }

    /// Returns the value of a key in a dictionary.
    pub fn get(&self, of: &Value, key: &str) -> Option<&Value> {
        let Value::Dict(pairs) = of else { return None };
        let is_key = |&&(name, _): &&(u32, u32)| matches!(self.value(name), Value::Text(text) if text == key);
        pairs.iter().rev().find(is_key).map(|&(_, value)| self.value(value))
    }

    /// Returns the parts of a list under a key; none if there is no such list.
    pub fn list<'a>(&'a self, of: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        let numbers: &[u32] = match self.get(of, key) {
            Some(Value::List(parts)) => parts,
            _ => &[],
        };
        numbers.iter().map(|&part| self.value(part))
    }

    /// Returns the number under a key.
    pub fn number(&self, of: &Value, key: &str) -> Option<u64> {
        match self.get(of, key)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns the text under a key.
    pub fn text<'a>(&'a self, of: &'a Value, key: &str) -> Option<&'a str> {
        match self.get(of, key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

type Step<T = ()> = Result<T, String>;

impl Machine<'_> {
    fn take(&mut self, count: usize) -> Step<&[u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or("the file ends too early")?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Reads an unsigned number of `count` bytes.
    fn unsigned(&mut self, count: usize) -> Step<usize> {
        let number = self.take(count)?.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| "a length is too large".into())
    }

    fn push(&mut self, value: Value) -> Step {
        if self.values.len() == VALUES {
            return Err(format!("more than {VALUES} values"));
        }
        self.values.push(value);
        self.stack.push(self.values.len() as u32 - 1);
        Ok(())
    }

    fn text(&mut self, length: usize) -> Step {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "a text is not UTF-8")?.to_owned();
        self.push(Value::Text(text))
    }

    fn pop(&mut self) -> Step<u32> {
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err("a value is missing".into());
        }
        self.stack.pop().ok_or_else(|| "a value is missing".into())
    }

    /// Removes and returns the values above the last mark.
    fn above(&mut self) -> Step<Vec<u32>> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn tuple(&mut self, count: usize) -> Step {
        let mut parts = (0..count).map(|_| self.pop()).collect::<Step<Vec<u32>>>()?;
        parts.reverse();
        self.push(Value::List(parts))
    }

    /// Returns the top value without removing it.
    fn last(&mut self) -> Step<&mut Value> {
        let number = *self.stack.last().ok_or("a value is missing")?;
        Ok(&mut self.values[number as usize])
    }

    fn append(&mut self, parts: Vec<u32>) -> Step {
        match self.last()? {
            Value::List(list) => list.extend(parts),
            _ => return Err("only a list can be extended".into()),
        }
        Ok(())
    }

    fn set(&mut self, parts: &[u32]) -> Step {
        match self.last()? {
            Value::Dict(pairs) => pairs.extend(parts.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
            _ => return Err("only a dictionary has keys".into()),
        }
        Ok(())
    }

    fn keep(&mut self, number: usize) -> Step {
        let value = *self.stack.last().ok_or("a value is missing")?;
        let number = u32::try_from(number).map_err(|_| "a number is too large")?;
        self.memo.insert(number, value);
        Ok(())
    }

    fn recall(&mut self, number: usize) -> Step {
        let value = u32::try_from(number).ok().and_then(|number| self.memo.get(&number));
        self.stack.push(*value.ok_or("a value that was not kept is named")?);
        Ok(())
    }

    /// Reads a whole number of any length.
    fn long(&mut self, count: usize) -> Step {
        let bytes = self.take(count)?;
        if count > 8 && bytes[8..].iter().any(|&byte| byte != 0) {
            return Err("a number has more than 64 bits".into());
        }
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let start = if negative { -1 } else { 0 };
        let number = bytes.iter().take(8).rev().fold(start, |word: i64, &byte| word << 8 | i64::from(byte));
        self.push(Value::Int(number))
    }

    /// Runs all operations and returns the number of the result.
    fn run(&mut self) -> Step<u32> {
        loop {
            match self.take(1)?[0] {
                0x80 => self.take(1).map(drop)?,
                0x95 => self.take(8).map(drop)?,
                b'.' => return self.pop(),
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'K' => {
                    let number = self.unsigned(1)?;
                    self.push(Value::Int(number as i64))?;
                }
                b'M' => {
                    let number = self.unsigned(2)?;
                    self.push(Value::Int(number as i64))?;
                }
                b'J' => self.long(4)?,
                0x8a => {
                    let count = self.unsigned(1)?;
                    self.long(count)?;
                }
                b'G' => {
                    let bits = self.take(8)?.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
                    self.push(Value::Float(f64::from_bits(bits)))?;
                }
                0x8c => {
                    let length = self.unsigned(1)?;
                    self.text(length)?;
                }
                b'X' => {
                    let length = self.unsigned(4)?;
                    self.text(length)?;
                }
                0x8d => {
                    let length = self.unsigned(8)?;
                    self.text(length)?;
                }
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b']' | b')' => self.push(Value::List(Vec::new()))?,
                b'(' => self.marks.push(self.stack.len()),
                b't' => {
                    let parts = self.above()?;
                    self.push(Value::List(parts))?;
                }
                count @ 0x85..=0x87 => self.tuple(usize::from(count - 0x84))?,
                b'a' => {
                    let part = self.pop()?;
                    self.append(vec![part])?;
                }
                b'e' => {
                    let parts = self.above()?;
                    self.append(parts)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let parts = self.above()?;
                    self.set(&parts)?;
                }
                0x94 => self.keep(self.memo.len())?,
                b'q' => {
                    let number = self.unsigned(1)?;
                    self.keep(number)?;
                }
                b'r' => {
                    let number = self.unsigned(4)?;
                    self.keep(number)?;
                }
                b'h' => {
                    let number = self.unsigned(1)?;
                    self.recall(number)?;
                }
                b'j' => {
                    let number = self.unsigned(4)?;
                    self.recall(number)?;
                }
                other => {
                    return Err(format!("operation {other:#04x} makes no plain value, so it is refused"));
                }
            }
        }
    }
}
