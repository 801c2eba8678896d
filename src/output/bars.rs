//! Bars on a terminal. Drawing waits for the terminal, which its user may have stopped, so only the thread of [`super::stderr`]
//! draws.

use std::{collections::HashMap, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::job::report::Unit;

/// How often a spinner turns while nothing is counted.
const TICK: Duration = Duration::from_millis(120);

/// How far a piece of work is.
#[derive(Clone)]
pub(super) struct Reached {
    pub done: u64,
    pub total: Option<u64>,
    pub unit: Unit,
    /// A remark beside the count.
    pub note: String,
}

impl Reached {
    pub fn is_end(&self) -> bool {
        self.total == Some(self.done)
    }
}

pub(super) struct Bars {
    screen: MultiProgress,
    works: HashMap<String, ProgressBar>,
}

impl Bars {
    pub fn new(screen: MultiProgress) -> Self {
        Self { screen, works: HashMap::new() }
    }

    /// Shows how far `what` is; a bar goes when its work is done.
    pub fn draw(&mut self, what: String, reached: Reached) {
        if reached.is_end() {
            self.works.remove(&what).iter().for_each(ProgressBar::finish_and_clear);
            return;
        }
        let bar = self.works.entry(what).or_insert_with_key(|what| {
            let bar = self.screen.add(ProgressBar::new_spinner()).with_message(what.clone());
            bar.set_style(style(&reached));
            bar.enable_steady_tick(TICK);
            bar
        });
        if let Some(total) = reached.total {
            bar.set_length(total);
        }
        bar.set_position(reached.done);
        bar.set_prefix(reached.note);
    }

    /// Runs `print` while no bar is on the screen.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.screen.suspend(print);
    }

    pub fn clear(&mut self) {
        self.works.drain().for_each(|(_, bar)| bar.finish_and_clear());
    }
}

/// Without a total there is only a spinner and the count.
fn style(Reached { total, unit, .. }: &Reached) -> ProgressStyle {
    let count = match (total, unit) {
        (None, Unit::Bytes) => "{bytes} {bytes_per_sec}",
        (None, _) => "{human_pos}",
        (Some(_), Unit::Bytes) => "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        (Some(_), Unit::Steps) => "{wide_bar} {human_pos}/{human_len}{prefix}",
        (Some(_), _) => "{wide_bar} {human_pos}/{human_len} {eta}",
    };
    let template = format!("{{spinner}} {{msg}} {count}");
    ProgressStyle::with_template(&template).map_or_else(|_| ProgressStyle::default_spinner(), |style| style.progress_chars("━╸ "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_a_valid_template() {
        for total in [None, Some(1)] {
            for (unit, count) in [(Unit::Bytes, "bytes"), (Unit::Items, "human_pos"), (Unit::Steps, "human_pos")] {
                let template = format!("{:?}", style(&Reached { done: 0, total, unit, note: String::new() }).get_tick_str(0));
                assert!(!template.is_empty(), "{count}");
            }
        }
    }
}
