//! Text in columns.

/// Rows under a heading, each column as wide as its widest cell. Columns whose heading begins with a space are
/// aligned to the right.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).chain([headings[i].len()]).max().unwrap_or(0);
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for ((cell, heading), width) in cells.iter().zip(headings).zip(&widths) {
            line += &match heading.starts_with(' ') {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(headings.to_vec());
    rows.iter().for_each(|row| text += &line(row.iter().map(String::as_str).collect()));
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1".into()], vec!["long".into(), "12345".into()]];
        assert_eq!(super::table(&["NAME", " N"], &rows), "NAME      N\na         1\nlong  12345\n");
    }
}
