//! Arithmetic on single elements. `None`: runtimes differ, or the operator is not followed.

use super::context::Context;
use super::value::Number::{self, Float, Int};

/// An operator on one element.
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

/// An operator on two elements, of which the first may be its result so far.
pub fn binary(context: &Context, a: Number, b: Number) -> Option<Number> {
    let op = context.op();
    let test = |found: bool| Some(Int(found.into()));
    match op {
        "And" => return test(a.float() != 0.0 && b.float() != 0.0),
        "Or" => return test(a.float() != 0.0 || b.float() != 0.0),
        "Xor" => return test((a.float() != 0.0) != (b.float() != 0.0)),
        "Pow" => return power(a, b),
        _ => {}
    }
    let ordered = match (a, b) {
        (Int(a), Int(b)) => comparison(op, &a, &b),
        _ => comparison(op, &a.float(), &b.float()),
    };
    if let Some(found) = ordered {
        return test(found);
    }
    match (a, b) {
        (Int(a), Int(b)) => match op {
            "Add" | "Sum" => a.checked_add(b),
            "Sub" => a.checked_sub(b),
            "Mul" => a.checked_mul(b),
            "Div" => a.checked_div(b),
            "Mod" if context.flag("fmod") => a.checked_rem(b),
            // Of the divisor's sign.
            "Mod" => {
                a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            }
            "PRelu" => {
                if a < 0 {
                    a.checked_mul(b)
                } else {
                    Some(a)
                }
            }
            "Max" => Some(a.max(b)),
            "Min" => Some(a.min(b)),
            "BitwiseAnd" => Some(a & b),
            "BitwiseOr" => Some(a | b),
            "BitwiseXor" => Some(a ^ b),
            "BitShift" if !(0..64).contains(&b) => None,
            "BitShift" if context.text("direction") == "LEFT" => Some(((a as u64) << b) as i64),
            "BitShift" => Some(((a as u64) >> b) as i64),
            _ => None,
        }
        .map(Int),
        _ => {
            let (a, b) = (a.float(), b.float());
            match op {
                "Add" | "Sum" | "Mean" => Some(a + b),
                "Sub" => Some(a - b),
                "Mul" => Some(a * b),
                "Div" => Some(a / b),
                "Mod" if context.flag("fmod") => Some(a % b),
                "Mod" => Some(a % b)
                    .map(|rest| if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }),
                "PRelu" => Some(if a < 0.0 { a * b } else { a }),
                "Max" => Some(a.max(b)),
                "Min" => Some(a.min(b)),
                _ => None,
            }
            .map(Float)
        }
    }
}

/// Compares two elements; `None` if the operator does not compare.
fn comparison<T: PartialOrd>(op: &str, a: &T, b: &T) -> Option<bool> {
    Some(match op {
        "Equal" => a == b,
        "Greater" => a > b,
        "GreaterOrEqual" => a >= b,
        "Less" => a < b,
        "LessOrEqual" => a <= b,
        _ => return None,
    })
}

fn power(a: Number, b: Number) -> Option<Number> {
    match (a, b) {
        (Int(a), Int(b)) => a.checked_pow(u32::try_from(b).ok()?).map(Int),
        _ => Some(Float(a.float().powf(b.float()))),
    }
}

/// Takes one more element into a reduction.
type Step = fn(Number, Number) -> Option<Number>;

/// Returns the start value of a reduction, and the function that adds an element.
pub fn reduction(op: &str) -> Option<(Number, Step)> {
    fn sum(a: Number, b: Number) -> Option<Number> {
        match (a, b) {
            (Int(a), Int(b)) => a.checked_add(b).map(Int),
            _ => Some(Float(a.float() + b.float())),
        }
    }
    fn times(a: Number, b: Number) -> Option<Number> {
        match (a, b) {
            (Int(a), Int(b)) => a.checked_mul(b).map(Int),
            _ => Some(Float(a.float() * b.float())),
        }
    }
    Some(match op {
        "ReduceSum" | "ReduceMean" => (Int(0), sum),
        "ReduceL1" => (Int(0), |a, b| match b {
            Int(b) => sum(a, Int(b.checked_abs()?)),
            Float(b) => sum(a, Float(b.abs())),
        }),
        "ReduceSumSquare" | "ReduceL2" => (Int(0), |a, b| sum(a, times(b, b)?)),
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
