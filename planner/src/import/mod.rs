//! Importers of models.

pub mod json;
pub mod onnx;
pub mod tflite;

/// Returns whether `op` is among the operators in `list`, separated by spaces.
fn is_one_of(list: &str, op: &str) -> bool {
    list.split(' ').any(|one| one == op)
}

/// Returns the name of element type `number` in `names`, and the bits of an element: the first number in the name, or 0 if they are not
/// fixed.
fn dtype(names: &'static str, number: i32) -> (&'static str, u64) {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    let name = names.split(' ').nth(number).unwrap_or("unknown");
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let bits = match name {
        "bool" => 8,
        // A resource is the number of a variable.
        "resource" => 32,
        _ => digits.parse().unwrap_or(0),
    };
    (name, bits)
}
