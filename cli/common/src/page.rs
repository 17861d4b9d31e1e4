//! Pages of tables as data: prose in comment lines, and tables as comma-separated values.
//!
//! A measurement writes Markdown; the repository keeps the page in this form, and `cargo xtask tables NAME` draws it.

use std::fmt::Write;

/// Turns Markdown into the form in which pages are kept.
pub fn from_markdown(markdown: &str) -> String {
    let mut text = String::new();
    for line in markdown.trim_end().lines() {
        let Some(row) = line.strip_prefix('|') else {
            text.push_str(if line.is_empty() { "" } else { "# " });
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let cells = cells(row.strip_suffix('|').unwrap_or(row));
        if cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| c == '-' || c == ':')) {
            continue;
        }
        text.push_str(&cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

/// Draws a page as Markdown.
pub fn to_markdown(page: &str) -> String {
    let mut text = String::new();
    let mut in_table = false;
    for line in page.lines() {
        if line.is_empty() || line.starts_with('#') {
            let prose = line.strip_prefix("# ").unwrap_or(line);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{prose}");
            in_table = false;
            continue;
        }
        let fields: Vec<_> = fields(line).iter().map(|field| field.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", fields.join(" | "));
        if !in_table {
            let _ = writeln!(text, "|{}", " --- |".repeat(fields.len()));
        }
        in_table = true;
    }
    text
}

/// Returns the first heading of a page, without its marks.
pub fn title(page: &str) -> &str {
    let heading = page.lines().find_map(|line| line.strip_prefix("# #"));
    heading.unwrap_or_default().trim_start_matches('#').trim()
}

/// Splits a row of a Markdown table at the bars that no backslash precedes.
fn cells(row: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut rest = row.chars().peekable();
    while let Some(character) = rest.next() {
        match (character, rest.peek()) {
            ('\\', Some('|')) => {
                rest.next();
                cells.last_mut().expect("there is always one").push('|');
            }
            ('|', _) => cells.push(String::new()),
            _ => cells.last_mut().expect("there is always one").push(character),
        }
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"']) || cell.starts_with('#') {
        return format!("\"{}\"", cell.replace('"', "\"\""));
    }
    cell.into()
}

/// Splits a line of comma-separated values; values hold no line breaks.
pub fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut inside = false;
    let mut rest = line.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '"' if inside && rest.peek() == Some(&'"') => {
                rest.next();
                fields.last_mut().expect("there is always one").push('"');
            }
            '"' => inside = !inside,
            ',' if !inside => fields.push(String::new()),
            _ => fields.last_mut().expect("there is always one").push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_drawn_as_it_was_written() {
        let markdown = "## Title\n\n* command: x\n\n| a | b |\n| --- | --- |\n| `x\\|y`, \"z\" | 1 |\n|  | # 2 |\n\n### More\n\nText, with a comma.\n";
        let page = from_markdown(markdown);
        assert_eq!(
            page,
            "# ## Title\n\n# * command: x\n\na,b\n\"`x|y`, \"\"z\"\"\",1\n,\"# 2\"\n\n# ### More\n\n# Text, with a comma.\n"
        );
        assert_eq!(to_markdown(&page), markdown);
        assert_eq!(title(&page), "Title");
    }

    #[test]
    fn the_line_below_the_head_is_not_data() {
        assert_eq!(from_markdown("| a | b |\n|---|---:|\n| - | 1 |\n"), "a,b\n-,1\n");
    }
}
