//! Figures and how they are shown.

use std::fmt;

/// One measured figure and what it is held against.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it should be.
    pub target: Target,
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// For information.
    None,
}

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    figures: Vec<Figure>,
}

impl Report {
    /// Adds a figure.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, target: Target) {
        self.figures.push(Figure { name: name.into(), value, unit, target });
    }

    /// Adds the figures of another report.
    pub fn extend(&mut self, other: Report) {
        self.figures.extend(other.figures);
    }

    /// The figures in their order.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }
}

impl Figure {
    /// Whether the target is reached; `None` if there is none.
    pub fn is_reached(&self) -> Option<bool> {
        match self.target {
            Target::AtLeast(target) => Some(self.value >= target),
            Target::AtMost(target) => Some(self.value <= target),
            Target::None => None,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.is_reached() {
            Some(true) => "  ok  ",
            Some(false) => "MISSED",
            None => "      ",
        };
        write!(f, "{verdict} {:58} {:>14} {:6}", self.name, format_number(self.value), self.unit)?;
        match self.target {
            Target::AtLeast(target) => write!(f, " (at least {})", format_number(target)),
            Target::AtMost(target) => write!(f, " (at most {})", format_number(target)),
            Target::None => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures.iter().try_for_each(|figure| writeln!(f, "{figure}"))
    }
}

fn format_number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
