//! Line charts as inline SVG.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// Colours that differ for the colour-blind too (Okabe and Ito).
pub const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// One line.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Something that happened, across the chart from `from` to `at`.
pub struct Mark {
    pub from: f64,
    pub at: f64,
    pub colour: &'static str,
    pub text: String,
}

/// How an axis is drawn.
pub struct Axis {
    pub title: &'static str,
    pub logarithmic: bool,
    /// Marks and their text; none: chosen by the values.
    pub marks: Option<Vec<(f64, String)>>,
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A number as short as it can be read.
pub fn short(value: f64) -> String {
    let digits = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value.abs() {
        v if v >= 1e6 => digits(value / 1e6) + " M",
        v if v >= 1e4 => digits(value / 1e3) + " k",
        _ => digits(value),
    }
}

/// The bounds of an axis and its marks.
fn scale(values: impl Iterator<Item = f64>, axis: &Axis) -> (f64, f64, Vec<(f64, String)>) {
    let values: Vec<f64> = values
        .filter(|v| v.is_finite() && (!axis.logarithmic || *v > 0.0))
        .collect();
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    if values.is_empty() {
        return (0.0, 1.0, Vec::new());
    }
    if let Some(marks) = &axis.marks {
        return (
            min.min(0.0),
            max,
            marks.iter().filter(|(at, _)| *at <= max).cloned().collect(),
        );
    }
    if axis.logarithmic {
        let (low, high) = (
            min.log10().floor(),
            max.log10().ceil().max(min.log10().floor() + 1.0),
        );
        let marks = (low as i32..=high as i32)
            .map(|power| (f64::from(power), short(10_f64.powi(power))))
            .collect();
        return (low, high, marks);
    }
    let max = if max > 0.0 { max } else { 1.0 };
    let power = 10_f64.powf((max / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|s| max / s <= 6.0);
    let step = step.unwrap_or(10.0 * power);
    let count = (max / step).ceil() as usize;
    let marks = (0..=count)
        .map(|mark| (mark as f64 * step, short(mark as f64 * step)))
        .collect();
    (0.0, count as f64 * step, marks)
}

/// The chart's SVG.
pub fn chart(lines: &[Line], x: &Axis, y: &Axis, marks: &[Mark]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (x_min, x_max, x_marks) = scale(points().map(|point| point.0), x);
    let (y_min, y_max, y_marks) = scale(points().map(|point| point.1), y);
    let place = |axis: &Axis, value: f64| {
        if axis.logarithmic {
            value.max(1e-9).log10()
        } else {
            value
        }
    };
    let span = |min: f64, max: f64| if max > min { max - min } else { 1.0 };
    let at_x = |value: f64| LEFT + (value - x_min) / span(x_min, x_max) * (WIDTH - LEFT - RIGHT);
    let at_y = |value: f64| {
        HEIGHT - BOTTOM - (value - y_min) / span(y_min, y_max) * (HEIGHT - TOP - BOTTOM)
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over {}\">",
        y.title, x.title
    );
    for (mark, text) in &x_marks {
        let at = at_x(*mark);
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{at:.1} {top}V{bottom}\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            bottom + 16.0
        );
    }
    for (mark, text) in &y_marks {
        let at = at_y(*mark);
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    let _ = write!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 6.0,
        x.title
    );
    let _ = write!(
        out,
        "<text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        HEIGHT / 2.0,
        y.title
    );
    for mark in marks {
        let from = at_x(mark.from.clamp(x_min, x_max));
        let width = (at_x(mark.at.clamp(x_min, x_max)) - from).max(1.5);
        let _ = write!(
            out,
            "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{}\" fill=\"{}\" opacity=\"0.22\"><title>{}</title></rect>",
            HEIGHT - TOP - BOTTOM,
            mark.colour,
            escape(&mark.text)
        );
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" points=\""
        );
        for (px, py) in &line.points {
            let _ = write!(
                out,
                "{:.1},{:.1} ",
                at_x(place(x, *px)),
                at_y(place(y, *py))
            );
        }
        let _ = write!(out, "\"><title>{}</title></polyline>", escape(&line.name));
    }
    out + "</svg>"
}
