//! Tables: aligned columns, no lines, as kubectl prints them.

use std::borrow::Cow;

use comfy_table::{CellAlignment, ContentArrangement, presets};

use crate::job::printable;

/// One cell.
#[derive(Debug, Clone)]
pub enum Cell {
    /// Left-aligned.
    Text(String),
    /// Several lines, which the caller laid out, left-aligned.
    Lines(String),
    /// Right-aligned.
    Number(String),
}

impl Cell {
    pub fn text(value: impl Into<String>) -> Self {
        Self::Text(value.into())
    }

    pub fn lines(value: impl Into<String>) -> Self {
        Self::Lines(value.into())
    }

    pub fn number(value: impl Into<String>) -> Self {
        Self::Number(value.into())
    }
}

/// Rows below a header; or, with an empty header, pairs of name and value.
#[derive(Debug, Clone, Default)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// A name and its value.
    pub fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.row([Cell::text(name), Cell::text(value)]);
    }

    /// A value may have several lines, which stand below its first. In a list they would look like other rows.
    fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.header.is_empty() { printable::text(text) } else { printable::line(text) }
    }

    pub fn render(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if !self.header.is_empty() {
            table.set_header(self.header.iter());
        }
        for cells in &self.rows {
            table.add_row(
                cells
                    .iter()
                    .map(|cell| match cell {
                        Cell::Text(text) => comfy_table::Cell::new(self.shown(text)),
                        Cell::Lines(text) => comfy_table::Cell::new(printable::text(text)),
                        Cell::Number(text) => comfy_table::Cell::new(self.shown(text)).set_alignment(CellAlignment::Right),
                    })
                    .collect::<Vec<_>>(),
            );
        }
        table.column_iter_mut().for_each(|column| {
            column.set_padding((0, 2));
        });
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_a_list_is_no_other_row() {
        let mut list = Table::new(&["NAME", "STATE"]);
        list.row([Cell::text("a\nb  succeeded\u{1b}[2J"), Cell::text("failed")]);
        assert_eq!(list.render().lines().count(), 2);
        assert!(!list.render().contains('\u{1b}'));
        let mut pairs = Table::default();
        pairs.pair("reason", "first\nstate  succeeded\u{9b}2J");
        assert_eq!(pairs.render(), "reason  first\n        state  succeeded\u{fffd}2J");
    }
}
