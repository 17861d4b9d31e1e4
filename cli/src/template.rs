//! Fills templates of self-contained HTML pages.

/// Returns a page: a template with its slots `{{name}}` filled. `{{data}}` becomes the JSON `data`, in a form that cannot end the element
/// around it; `part` returns the text of every other slot.
pub fn filled(template: &str, data: &str, part: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(data.len() + (1 << 16));
    let mut rest = template;
    while let Some((before, (slot, after))) =
        rest.split_once("{{").and_then(|(before, after)| Some((before, after.split_once("}}")?)))
    {
        out += before;
        match slot {
            "data" => escape(data, &mut out),
            _ => out += &part(slot),
        }
        rest = after;
    }
    out + rest
}

/// Appends equivalent JSON that cannot end an HTML element.
fn escape(json: &str, out: &mut String) {
    for c in json.chars() {
        match c {
            '<' => *out += "\\u003c",
            '>' => *out += "\\u003e",
            '&' => *out += "\\u0026",
            c => out.push(c),
        }
    }
}
