//! Tables: aligned columns, no lines, as kubectl prints them.

use comfy_table::{CellAlignment, ContentArrangement, presets};

/// One cell.
#[derive(Debug, Clone)]
pub enum Cell {
    /// Left-aligned.
    Text(String),
    /// Right-aligned.
    Number(String),
}

impl Cell {
    pub fn text(value: impl Into<String>) -> Self {
        Self::Text(value.into())
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
                        Cell::Text(text) => comfy_table::Cell::new(text),
                        Cell::Number(text) => comfy_table::Cell::new(text).set_alignment(CellAlignment::Right),
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
