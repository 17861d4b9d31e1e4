//! Arithmetic on single elements. `None` means that runtimes differ, or that the operator is not supported.

use std::cmp::Ordering;

use super::context::Context;
use super::value::Number::{self, Float, Int};

/// Applies an operator to an element.
pub fn unary(context: &Context, x: Number) -> Option<Number> {
    Some(match (context.op(), x) {
        ("Abs", Int(x)) => Int(x.checked_abs()?),
        ("Abs", Float(x)) => Float(x.abs()),
        ("Neg", Int(x)) => Int(x.checked_neg()?),
        ("Neg", Float(x)) => Float(-x),
        ("Sign", Int(x)) => Int(x.signum()),
        ("Sign", Float(x)) => Float(if x == 0.0 { 0.0 } else { x.signum() }),
        ("Relu", Int(x)) => Int(x.max(0)),
        ("Relu", Float(x)) => Float(x.max(0.0)),
        ("Ceil", Float(x)) => Float(x.ceil()),
        ("Floor", Float(x)) => Float(x.floor()),
        ("Round", Float(x)) => Float(x.round_ties_even()),
        ("Sqrt", Float(x)) => Float(x.sqrt()),
        ("Exp", Float(x)) => Float(x.exp()),
        ("Log", Float(x)) => Float(x.ln()),
        ("Reciprocal", Float(x)) => Float(1.0 / x),
        ("Not", Int(x)) => Int(i64::from(x == 0)),
        ("BitwiseNot", Int(x)) => Int(!x),
        ("IsNaN", Float(x)) => Int(x.is_nan().into()),
        ("IsInf", Float(x)) => {
            let found = if x > 0.0 { "detect_positive" } else { "detect_negative" };
            Int((x.is_infinite() && context.int(found, 1) != 0).into())
        }
        _ => return None,
    })
}

/// Combines two elements with the integer or the floating-point form of an operator.
fn pair(
    a: Number,
    b: Number,
    ints: fn(i64, i64) -> Option<i64>,
    floats: fn(f64, f64) -> f64,
) -> Option<Number> {
    match (a, b) {
        (Int(a), Int(b)) => ints(a, b).map(Int),
        _ => Some(Float(floats(a.float(), b.float()))),
    }
}

/// Applies an operator to two elements, the first of which may be the result so far.
pub fn binary(context: &Context, a: Number, b: Number) -> Option<Number> {
    let test = |found: bool| Some(Int(found.into()));
    let (x, y) = (a.float() != 0.0, b.float() != 0.0);
    let order = match (a, b) {
        (Int(a), Int(b)) => Some(a.cmp(&b)),
        _ => a.float().partial_cmp(&b.float()),
    };
    match context.op() {
        "And" => test(x && y),
        "Or" => test(x || y),
        "Xor" => test(x != y),
        "Equal" => test(order == Some(Ordering::Equal)),
        "Greater" => test(order == Some(Ordering::Greater)),
        "GreaterOrEqual" => test(order.is_some_and(Ordering::is_ge)),
        "Less" => test(order == Some(Ordering::Less)),
        "LessOrEqual" => test(order.is_some_and(Ordering::is_le)),
        "Pow" => power(a, b),
        "Add" | "Sum" => pair(a, b, i64::checked_add, |a, b| a + b),
        "Mean" => pair(a, b, |_, _| None, |a, b| a + b),
        "Sub" => pair(a, b, i64::checked_sub, |a, b| a - b),
        "Mul" => pair(a, b, i64::checked_mul, |a, b| a * b),
        "Div" => pair(a, b, i64::checked_div, |a, b| a / b),
        "Mod" if context.flag("fmod") => pair(a, b, i64::checked_rem, |a, b| a % b),
        // The result has the divisor's sign.
        "Mod" => pair(
            a,
            b,
            |a, b| {
                a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            },
            |a, b| if a % b != 0.0 && (a % b < 0.0) != (b < 0.0) { a % b + b } else { a % b },
        ),
        "PRelu" => pair(
            a,
            b,
            |a, b| if a < 0 { a.checked_mul(b) } else { Some(a) },
            |a, b| if a < 0.0 { a * b } else { a },
        ),
        "Max" => pair(a, b, |a, b| Some(a.max(b)), f64::max),
        "Min" => pair(a, b, |a, b| Some(a.min(b)), f64::min),
        bits => {
            let (Int(a), Int(b)) = (a, b) else { return None };
            match bits {
                "BitwiseAnd" => Some(Int(a & b)),
                "BitwiseOr" => Some(Int(a | b)),
                "BitwiseXor" => Some(Int(a ^ b)),
                "BitShift" if !(0..64).contains(&b) => None,
                "BitShift" if context.text("direction") == "LEFT" => Some(Int(((a as u64) << b) as i64)),
                "BitShift" => Some(Int(((a as u64) >> b) as i64)),
                _ => None,
            }
        }
    }
}

fn power(a: Number, b: Number) -> Option<Number> {
    match (a, b) {
        (Int(a), Int(b)) => a.checked_pow(u32::try_from(b).ok()?).map(Int),
        _ => Some(Float(a.float().powf(b.float()))),
    }
}

/// Adds an element to a reduction.
type Step = fn(Number, Number) -> Option<Number>;

/// Returns the start value of a reduction, and the function that adds an element.
pub fn reduction(op: &str) -> Option<(Number, Step)> {
    let sum: Step = |a, b| pair(a, b, i64::checked_add, |a, b| a + b);
    let times: Step = |a, b| pair(a, b, i64::checked_mul, |a, b| a * b);
    Some(match op {
        "ReduceSum" | "ReduceMean" => (Int(0), sum),
        "ReduceL1" => (Int(0), |a, b| pair(a, b, |a, b| a.checked_add(b.checked_abs()?), |a, b| a + b.abs())),
        "ReduceSumSquare" | "ReduceL2" => {
            (Int(0), |a, b| pair(a, b, |a, b| a.checked_add(b.checked_mul(b)?), |a, b| a + b * b))
        }
        "ReduceProd" => (Int(1), times),
        "ReduceMax" => {
            (
                Int(i64::MIN),
                |a, b| if a.float() >= b.float() && a != Int(i64::MIN) { Some(a) } else { Some(b) },
            )
        }
        "ReduceMin" => {
            (
                Int(i64::MAX),
                |a, b| if a.float() <= b.float() && a != Int(i64::MAX) { Some(a) } else { Some(b) },
            )
        }
        _ => return None,
    })
}
