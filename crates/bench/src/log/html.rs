//! A report for people: one page without anything from elsewhere, with a picture for each group of curves.

use super::{Curve, Outcome, PERCENTILES};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 90.0;
const BOTTOM: f64 = 40.0;
const COLORS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];

/// The page.
pub fn page(outcome: &Outcome) -> String {
    let mut html = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Rockdove: what durability costs</title>\
         <style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
         table{border-collapse:collapse}td,th{padding:.15rem .8rem;border-bottom:1px solid #ddd;text-align:right}\
         td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}text{font:12px system-ui}\
         .missed{color:#d1242f;font-weight:600}</style><h1>What durability costs</h1>",
    );
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
        let _ = write!(html, "<h2>{}</h2>{}", escape(group), picture(&curves));
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
    html + "</table></html>\n"
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

/// Latency on a logarithmic axis over the percentiles at even distances, one line for each curve.
fn picture(curves: &[&Curve]) -> String {
    let points = |c: &Curve| -> Vec<f64> {
        PERCENTILES.iter().map(|p| c.micros(*p)).chain([c.max_micros()]).map(|v| v.max(0.1)).collect()
    };
    let highest = curves.iter().flat_map(|c| points(c)).fold(1.0f64, f64::max).log10().ceil();
    let lowest =
        curves.iter().flat_map(|c| points(c)).fold(f64::MAX, f64::min).log10().floor().min(highest - 1.0);
    let x = |i: usize| LEFT + (WIDTH - LEFT - 150.0) * i as f64 / PERCENTILES.len() as f64;
    let y = |v: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 15.0) * (v.log10() - lowest) / (highest - lowest);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    let mut power = lowest;
    while power <= highest {
        let (at, label) = (y(10f64.powf(power)), time(10f64.powf(power)));
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            x(PERCENTILES.len()),
            LEFT - 8.0,
            at + 4.0
        );
        power += 1.0;
    }
    for (i, p) in PERCENTILES.iter().map(f64::to_string).chain(["worst".into()]).enumerate() {
        let _ =
            write!(svg, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{p}</text>", x(i), HEIGHT - 15.0);
    }
    for (curve, color) in curves.iter().zip(COLORS.iter().cycle()) {
        let values = points(curve);
        let path: Vec<_> =
            values.iter().enumerate().map(|(i, v)| format!("{:.1},{:.1}", x(i), y(*v))).collect();
        let end = y(*values.last().unwrap_or(&1.0)) + 4.0;
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{end:.1}\" fill=\"{color}\">{}</text>",
            path.join(" "),
            x(PERCENTILES.len()) + 6.0,
            escape(&curve.name)
        );
    }
    svg + "</svg>"
}

fn time(micros: f64) -> String {
    match micros {
        m if m >= 1e6 => format!("{} s", m / 1e6),
        m if m >= 1e3 => format!("{} ms", m / 1e3),
        m => format!("{m} µs"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
