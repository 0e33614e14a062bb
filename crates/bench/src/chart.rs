//! Line charts as SVG, and the page that holds them: one file that needs nothing else.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 28.0;
const RIGHT: f64 = 190.0;
/// Told apart also by people who see colours differently.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of ten.
    Log,
    /// Percentiles: each further nine has the same room.
    Nines,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: &'static str,
    /// How.
    pub scale: Scale,
}

/// Latencies, of which the long ones matter.
pub const LATENCY: Axis = Axis { label: "latency, microseconds", scale: Scale::Log };
/// Percentiles, of which the high ones matter.
pub const PERCENTILE: Axis = Axis { label: "percentile", scale: Scale::Nines };

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// Draws lines. Points that are no numbers, or not above zero on a logarithmic axis, are left out.
pub fn svg(title: &str, x: Axis, y: Axis, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let (across, up) = (Range::of(x.scale, all().map(|p| p.0)), Range::of(y.scale, all().map(|p| p.1)));
    let place = |point: &(f64, f64)| {
        let left = LEFT + across.share(point.0)? * (WIDTH - LEFT - RIGHT);
        Some((left, HEIGHT - BOTTOM - up.share(point.1)? * (HEIGHT - BOTTOM - TOP)))
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{0}</title><text x=\"{LEFT}\" y=\"16\" class=\"t\">{0}</text>",
        escape(title)
    );
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in across.ticks() {
        let Some(share) = across.share(tick) else { continue };
        let at = LEFT + share * (right - LEFT);
        push(
            &mut out,
            format_args!(
                "<path class=\"g\" d=\"M{at:.1} {TOP}V{bottom}\"/><text x=\"{at:.1}\" y=\"{}\" class=\"x\">{}</text>",
                bottom + 16.0,
                number(tick)
            ),
        );
    }
    for tick in up.ticks() {
        let Some(share) = up.share(tick) else { continue };
        let at = bottom - share * (bottom - TOP);
        push(
            &mut out,
            format_args!(
                "<path class=\"g\" d=\"M{LEFT} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" class=\"y\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                number(tick)
            ),
        );
    }
    push(
        &mut out,
        format_args!(
            "<text x=\"{}\" y=\"{}\" class=\"x\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escape(x.label)
        ),
    );
    push(
        &mut out,
        format_args!(
            "<text x=\"14\" y=\"{0}\" class=\"x\" transform=\"rotate(-90 14 {0})\">{1}</text>",
            (TOP + bottom) / 2.0,
            escape(y.label)
        ),
    );
    for (n, line) in lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points: Vec<String> =
            line.points.iter().filter_map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        push(&mut out, format_args!("<polyline points=\"{}\" stroke=\"{colour}\"/>", points.join(" ")));
        for (x, y) in line.points.iter().filter_map(place) {
            push(&mut out, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\"/>"));
        }
        let at = TOP + 14.0 * n as f64 + 8.0;
        push(
            &mut out,
            format_args!(
                "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"3\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\" class=\"l\">{}</text>",
                right + 10.0,
                at - 4.0,
                right + 28.0,
                at,
                escape(&line.name)
            ),
        );
    }
    out.push_str("</svg>\n");
    out
}

/// A page around charts and tables, which are HTML already.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>\
         body{{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}}\
         table{{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}}\
         td,th{{border-bottom:1px solid #ccc;padding:2px 9px;text-align:right}}td:first-child,th:first-child{{text-align:left}}\
         svg{{width:100%;height:auto;margin:.5em 0;background:#fff}}svg text{{font-size:11px;fill:#333}}.t{{font-weight:bold}}\
         .g{{stroke:#e4e4e4;fill:none}}.x{{text-anchor:middle}}.y{{text-anchor:end}}polyline{{fill:none;stroke-width:1.6}}\
         pre{{background:#f4f4f4;padding:.7em;overflow:auto}}.missed{{color:#d1242f;font-weight:600}}</style></head><body><h1>{0}</h1>\n{body}</body></html>\n",
        escape(title)
    )
}

/// Text as HTML shows it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// What an axis covers, on its scale.
struct Range {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Range {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Range {
        let placed: Vec<f64> = values.filter_map(|value| on(scale, value)).collect();
        let least = placed.iter().copied().fold(f64::INFINITY, f64::min);
        let most = placed.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (from, to) = match scale {
            _ if placed.is_empty() => (0.0, 1.0),
            Scale::Linear => (least.min(0.0), most),
            Scale::Log => (least.floor(), most.ceil()),
            Scale::Nines => (least, most),
        };
        Range { scale, from, to: if to > from { to } else { from + 1.0 } }
    }

    /// Where a value lies, from 0 to 1.
    fn share(&self, value: f64) -> Option<f64> {
        Some((on(self.scale, value)? - self.from) / (self.to - self.from))
            .filter(|share| (-0.001..=1.001).contains(share))
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Log => (self.from as i32..=self.to as i32).map(|power| 10f64.powi(power)).collect(),
            Scale::Nines => vec![1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999],
            Scale::Linear => {
                let raw = (self.to - self.from) / 6.0;
                let power = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= raw);
                let step = step.unwrap_or(raw);
                (0..=8).map(|n| (self.from / step).ceil() * step + step * f64::from(n)).collect()
            }
        }
    }
}

/// A value on a scale.
fn on(scale: Scale, value: f64) -> Option<f64> {
    match scale {
        Scale::Linear => Some(value),
        Scale::Log => (value > 0.0).then(|| value.log10()),
        Scale::Nines => Some(-(1.0 - value.clamp(0.0, 99.9995) / 100.0).log10()),
    }
    .filter(|place| place.is_finite())
}

fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e4 => format!("{}k", v / 1e3),
        v => format!("{}", (v * 1000.0).round() / 1000.0),
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text); // a String takes all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: &[(f64, f64)]) -> String {
        let axis = Axis { label: "a<b", scale };
        svg(
            "t & u",
            Axis { label: "x", scale: Scale::Linear },
            axis,
            &[Line { name: "one".into(), points: points.to_vec() }],
        )
    }

    #[test]
    fn points_lie_within_the_frame_and_text_is_escaped() {
        for scale in [Scale::Linear, Scale::Log, Scale::Nines] {
            let drawn = chart(scale, &[(0.0, 1.0), (5.0, 99.99), (10.0, 50.0)]);
            assert_eq!(drawn.matches("<circle").count(), 3, "{scale:?}");
            assert!(drawn.contains("t &amp; u") && drawn.contains("a&lt;b") && !drawn.contains("NaN"));
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        assert_eq!(
            chart(Scale::Log, &[(0.0, 0.0), (1.0, f64::NAN), (2.0, 3.0)]).matches("<circle").count(),
            1
        );
        assert_eq!(chart(Scale::Linear, &[]).matches("<circle").count(), 0);
        assert_eq!(chart(Scale::Linear, &[(1.0, 1.0)]).matches("<circle").count(), 1);
    }
}
