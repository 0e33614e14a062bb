//! A report for people: one page without anything from elsewhere, with a picture for each group of curves.

use super::{Curve, Outcome, PERCENTILES};
use crate::chart::{self, LATENCY, Line, PERCENTILE, escape, svg};
use std::fmt::Write;

/// The page.
pub fn page(outcome: &Outcome) -> String {
    let mut html = String::new();
    html += "<p>Latency counts from the time a message was due. Figures of one run on one machine; what limits them \
             was measured in the same run.</p><table>";
    for (name, value) in &outcome.machine {
        line(&mut html, &[name, value], false);
    }
    html += "</table>";
    let mut groups: Vec<&str> = outcome.curves.iter().map(|c| &*c.group).collect();
    groups.dedup();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let curves: Vec<_> = outcome.curves.iter().filter(|c| c.group == group).collect();
        let _ = write!(html, "<h2>{}</h2>{}", escape(group), picture(group, &curves));
        html += &table(&curves);
    }
    html += "<h2>Figures</h2><table>";
    for figure in outcome.report.figures() {
        let target = match figure.target {
            crate::report::Target::AtLeast(t) => format!("at least {t}"),
            crate::report::Target::AtMost(t) => format!("at most {t}"),
            crate::report::Target::None => String::new(),
        };
        let value = format!("{:.3} {}", figure.value, figure.unit);
        line(&mut html, &[&figure.name, &value, &target], figure.is_reached() == Some(false));
    }
    html += "</table>";
    chart::page("Rockdove: what durability costs", &html)
}

fn line(html: &mut String, cells: &[&str], missed: bool) {
    *html += if missed { "<tr class=\"missed\">" } else { "<tr>" };
    for cell in cells {
        let _ = write!(html, "<td>{}</td>", escape(cell));
    }
    *html += "</tr>";
}

fn table(curves: &[&Curve]) -> String {
    let mut html = String::from("<table><tr><th>microseconds</th>");
    for percentile in PERCENTILES {
        let _ = write!(html, "<th>{percentile}</th>");
    }
    html += "<th>worst</th></tr>";
    for curve in curves {
        let mut cells = vec![curve.name.clone()];
        cells.extend(PERCENTILES.iter().map(|p| format!("{:.0}", curve.micros(*p))));
        cells.push(format!("{:.0}", curve.max_micros()));
        line(&mut html, &cells.iter().map(String::as_str).collect::<Vec<_>>(), false);
    }
    html + "</table>"
}

/// Latency over the percentiles, one line for each curve; the worst is beyond the last percentile.
fn picture(title: &str, curves: &[&Curve]) -> String {
    let points = |curve: &Curve| -> Vec<(f64, f64)> {
        let percentiles = PERCENTILES.iter().map(|percentile| (*percentile, curve.micros(*percentile)));
        percentiles.chain([(100.0, curve.max_micros())]).map(|(p, micros)| (p, micros.max(0.1))).collect()
    };
    let lines: Vec<Line> =
        curves.iter().map(|curve| Line { name: curve.name.clone(), points: points(curve) }).collect();
    svg(title, PERCENTILE, LATENCY, &lines)
}
