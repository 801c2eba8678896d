//! The machines that `--everybody` means, shown before anybody is asked.

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    lifecycle::{Resource, Whose, World},
    output::{Cell, Table, format},
};

/// A machine and where it is.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub backend: String,
    #[serde(flatten)]
    pub resource: Resource,
}

pub const COLUMNS: [&str; 5] = ["MACHINE", "OWNER", "STORE", "AGE", "BACKEND"];

/// A row of [`COLUMNS`].
pub fn row(backend: &str, resource: &Resource, now: Timestamp) -> [Cell; 5] {
    let known = |text: &Option<String>| Cell::text(text.clone().unwrap_or_else(|| "-".to_owned()));
    let belongs = &resource.belongs;
    let age = Cell::number(format::age(resource.since, now));
    [Cell::text(&resource.name), known(&belongs.owner), known(&belongs.store), age, Cell::text(backend)]
}

/// Shows what is meant by a verb that means others as well.
pub fn show(world: &World, machines: &[Machine]) {
    let mut table = Table::new(&COLUMNS);
    for Machine { backend, resource } in machines {
        table.row(row(backend, resource, world.clock.now()));
    }
    world.report.line(&table.render());
}

/// Which of them are not our own, as a sentence before a question; empty where all are.
pub fn of_others<'r>(resources: impl Iterator<Item = &'r Resource>) -> String {
    let others: Vec<&str> =
        resources.filter(|resource| resource.belongs.whose != Whose::Ours).map(|resource| resource.name.as_str()).collect();
    match others[..] {
        [] => String::new(),
        [one] => format!("{one} is not of this user and this store. "),
        _ => format!("{} are not of this user and this store. ", others.join(", ")),
    }
}
