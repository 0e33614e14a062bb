//! A result as a page: the table, percentile curves, what was achieved of what was offered, and the time series.

use super::result::{Record, Run, Step, knees, steps};
use crate::chart::{Axis, LATENCY, Line, PERCENTILE, Scale, escape, page, svg};
use std::fmt::Write;

/// The page of a result.
pub fn html(records: &[Record]) -> String {
    let mut body = String::new();
    for record in records {
        if let Record::Run(run) = record {
            body.push_str(&about(run));
        }
    }
    let all: Vec<&Step> = steps(records).collect();
    body.push_str(&table(&all));
    for (target, knee) in knees(records) {
        let text = match knee {
            Some(rate) => format!("{target} could not keep up with {rate} messages/s."),
            None => format!("{target} kept up to the end."),
        };
        body.push_str(&format!("<p>{}</p>\n", escape(&text)));
    }
    let offered = Axis { label: "offered, messages/s", scale: Scale::Linear };
    let achieved = Axis { label: "achieved, messages/s", scale: Scale::Linear };
    let ramps = by_target(&all, |step| Some((step.offered?, step.achieved)));
    if ramps.iter().any(|line| line.points.len() > 1) {
        body.push_str(&svg("Achieved of what was offered", offered, achieved, &ramps));
        let medians = by_target(&all, |step| Some((step.offered?, step.latency.p50)));
        body.push_str(&svg("Median latency by offered rate", offered, LATENCY, &medians));
        let tails = by_target(&all, |step| Some((step.offered?, step.latency.p99)));
        body.push_str(&svg("99th percentile by offered rate", offered, LATENCY, &tails));
    }
    let mut labels: Vec<&str> = Vec::new();
    for step in &all {
        if !labels.contains(&step.label.as_str()) {
            labels.push(&step.label);
        }
    }
    for label in labels {
        let here = || all.iter().filter(|step| step.label == label);
        let curves: Vec<Line> =
            here().map(|step| Line { name: name(step), points: step.curve.clone() }).collect();
        body.push_str(&svg(&format!("Percentiles, {label}"), PERCENTILE, LATENCY, &curves));
        let series = here().filter(|step| !step.seconds.is_empty()).map(|step| Line {
            name: name(step),
            points: step.seconds.iter().enumerate().map(|(second, s)| (second as f64, s.p99)).collect(),
        });
        let series: Vec<Line> = series.collect();
        if !series.is_empty() {
            let time = Axis { label: "second of the step", scale: Scale::Linear };
            body.push_str(&svg(&format!("99th percentile by second, {label}"), time, LATENCY, &series));
        }
    }
    page("Rockdove: load on the bus", &body)
}

fn name(step: &Step) -> String {
    if step.round > 1 { format!("{} ({})", step.target, step.round) } else { step.target.clone() }
}

/// One line a target, of its first round.
fn by_target(all: &[&Step], point: impl Fn(&Step) -> Option<(f64, f64)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for step in all.iter().filter(|step| step.round == 1) {
        let Some(point) = point(step) else { continue };
        match lines.iter_mut().find(|line| line.name == step.target) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: step.target.clone(), points: vec![point] }),
        }
    }
    lines
}

fn about(run: &Run) -> String {
    let plan = &run.plan;
    let text = format!(
        "{} with {} cores; layout {}; {}; {}; {} bytes; senders {}, receivers {}; work {:?}; rounds {}.",
        run.version,
        run.cores,
        plan.layout,
        if plan.exclusive { "exclusive" } else { "broadcast" },
        if plan.polling { "polling" } else { "change streams" },
        plan.payload_bytes,
        plan.senders,
        plan.receivers,
        plan.work,
        plan.rounds,
    );
    format!("<p>Rockdove {}</p>\n", escape(&text))
}

fn table(all: &[&Step]) -> String {
    let mut out = String::from(
        "<table><tr><th>target</th><th>step</th><th>round</th><th>achieved /s</th><th>p50 &micro;s</th><th>p99 &micro;s</th>\
         <th>p99.9 &micro;s</th><th>max &micro;s</th><th>out p50</th><th>back p50</th><th>lost</th><th>twice</th><th>failed</th>\
         <th>client CPU &micro;s</th></tr>\n",
    );
    for step in all {
        let back = step.back.map_or("-".into(), |back| format!("{:.0}", back.p50));
        // A String takes all.
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td>\
             <td>{:.0}</td><td>{back}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td></tr>",
            escape(&step.target),
            escape(&step.label),
            step.round,
            step.achieved,
            step.latency.p50,
            step.latency.p99,
            step.latency.p999,
            step.latency.max,
            step.outbound.p50,
            step.lost,
            step.duplicates,
            step.failed,
            step.client_cpu_us,
        );
    }
    out.push_str("</table>\n");
    out
}
