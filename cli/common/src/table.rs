//! Plain text tables.

use comfy_table::{CellAlignment, Table, presets};

/// Lays out `rows` under `header`; the columns in `numbers` (counted from 0) are set flush right.
///
/// No colour and no terminal width: the output is the same in a pipe, a log file and a terminal.
pub fn render<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    numbers: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    table.add_rows(rows);
    for &number in numbers {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::render;

    #[test]
    fn numbers_are_flush_right_and_columns_fit() {
        let rows = [["a".into(), "7".into()], ["longer".into(), "123456".into()]];
        let expected = "\
| board  |  bytes |
|--------|--------|
| a      |      7 |
| longer | 123456 |";
        assert_eq!(render(["board", "bytes"], rows, &[1]), expected);
    }
}
