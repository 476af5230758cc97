// SPDX-License-Identifier: Apache-2.0
//! Plot frame: axes, ticks and labels of a plot, as SVG.
//!
//! Sizes are in user units of the view box; a page scales a plot to the width of its column, on a
//! phone to about 0.85.

use std::collections::HashSet;
use std::fmt::Write;

/// Size of a plot.
pub const WIDTH: f64 = 420.0;
/// Size of a plot.
pub const HEIGHT: f64 = 250.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 38.0;

/// Approximate number of ticks of a linear axis.
const LINEAR_TICKS: f64 = 5.0;

/// The scale of an axis.
#[derive(Clone, Debug)]
pub struct PlotAxis {
    /// The quantity that it shows, with its unit.
    pub title: String,
    /// Its range; on a logarithmic axis over 0.
    pub range: (f64, f64),
    /// True for logarithms.
    pub is_log: bool,
    /// The text of a tick.
    pub label: fn(f64) -> String,
}

impl PlotAxis {
    /// A logarithmic axis that has all of `values` that are over 0.
    #[must_use]
    pub fn log(title: &str, values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Self {
        let positive = values.filter(|value| *value > 0.0 && value.is_finite());
        let (low, high) = positive
            .fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let range = if low > high { (1.0, 10.0) } else { (low / 1.15, high * 1.15) };
        Self { title: title.to_owned(), range, is_log: true, label }
    }

    /// A linear axis from 0 to `high`.
    #[must_use]
    pub fn linear(title: &str, high: f64, label: fn(f64) -> String) -> Self {
        // The steps of other numbers are 0 or infinite.
        let high = if high > 0.0 && high.is_normal() { high } else { 1.0 };
        Self { title: title.to_owned(), range: (0.0, high), is_log: false, label }
    }

    /// A linear axis of `range`.
    #[must_use]
    pub fn linear_between(title: &str, range: (f64, f64), label: fn(f64) -> String) -> Self {
        let (low, high) = range;
        // Narrower ranges have no steps that their ends can count.
        let is_wide = (high - low).is_normal() && high - low > 1e-9 * high.abs().max(low.abs());
        let middle = if low.is_finite() { low.clamp(-1e300, 1e300) } else { 0.0 };
        let around = 1.0 + 1e-3 * middle.abs();
        let range = if is_wide { range } else { (middle - around, middle + around) };
        Self { title: title.to_owned(), range, is_log: false, label }
    }

    /// The share of the axis below `value`.
    fn share(&self, value: f64) -> f64 {
        let (low, high) = self.range;
        let share = match self.is_log {
            true => (value.max(low).ln() - low.ln()) / (high.ln() - low.ln()),
            false => (value - low) / (high - low),
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        let (low, high) = self.range;
        if !self.is_log {
            let raw = (high - low) / LINEAR_TICKS;
            let decade = 10f64.powf(raw.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
            let step = step.into_iter().find(|step| *step >= raw).unwrap_or(decade * 10.0);
            let first = (low / step).ceil();
            let count = ((high / step).floor() - first) as u32;
            return (0..=count).map(|tick| (first + f64::from(tick)) * step).collect();
        }
        let decades = (high / low).log10();
        let factors: &[f64] = match decades {
            decades if decades < 0.7 => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
            decades if decades < 2.5 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let every = (decades / 6.0).ceil().max(1.0) as i32;
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let decades = (first..=last).filter(|decade| decade.rem_euclid(every) == 0);
        let values = decades.flat_map(|decade| factors.iter().map(move |f| f * 10f64.powi(decade)));
        values.filter(|value| (low..=high).contains(value)).collect()
    }
}

/// A plot that is being drawn.
#[derive(Debug)]
pub struct PlotFrame {
    x: PlotAxis,
    y: PlotAxis,
    svg: String,
}

impl PlotFrame {
    /// Draws the axes.
    #[must_use]
    pub fn new(title: &str, x: PlotAxis, y: PlotAxis) -> Self {
        let svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(title)
        );
        let mut frame = Self { x, y, svg };
        frame.axes();
        frame
    }

    fn axes(&mut self) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let mut svg = String::from("<g class=\"grid\">");
        let mut labels = String::new();
        for tick in self.x.ticks() {
            let x = self.x_of(tick);
            draw(&mut svg, format_args!("<path d=\"M{x:.1} {TOP}V{bottom}\"/>"));
            let (y, text) = (bottom + 14.0, (self.x.label)(tick));
            draw(
                &mut labels,
                format_args!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>"),
            );
        }
        for tick in self.y.ticks() {
            let (y, text) = (self.y_of(tick), (self.y.label)(tick));
            draw(&mut svg, format_args!("<path d=\"M{LEFT} {y:.1}H{right}\"/>"));
            let x = LEFT - 5.0;
            let y = y + 4.0;
            draw(
                &mut labels,
                format_args!("<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>"),
            );
        }
        let (middle, end) = ((LEFT + right) / 2.0, HEIGHT - 6.0);
        let x_title = escape(&self.x.title);
        draw(
            &mut labels,
            format_args!(
                "<text x=\"{middle}\" y=\"{end}\" text-anchor=\"middle\">{x_title}</text>"
            ),
        );
        let (middle, y_title) = ((TOP + bottom) / 2.0, escape(&self.y.title));
        draw(
            &mut labels,
            format_args!(
                "<text transform=\"translate(11 {middle}) rotate(-90)\" \
                 text-anchor=\"middle\">{y_title}</text>"
            ),
        );
        draw(&mut svg, format_args!("</g><g class=\"ticks\">{labels}</g>"));
        self.svg.push_str(&svg);
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y_of(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)
    }

    /// Draws a line through `points`.
    pub fn line(&mut self, points: impl Iterator<Item = (f64, f64)>, color: &str) {
        let mut path = String::new();
        for (index, (x, y)) in points.enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            draw(&mut path, format_args!("{command}{:.1} {:.1}", self.x_of(x), self.y_of(y)));
        }
        draw(&mut self.svg, format_args!("<path class=\"line\" stroke=\"{color}\" d=\"{path}\"/>"));
    }

    /// Draws a dot for each of `points`, one for those at the same place; each costs ten bytes.
    pub fn dots(&mut self, points: impl Iterator<Item = (f64, f64)>, color: &str) {
        let (mut path, mut drawn) = (String::new(), HashSet::new());
        for (x, y) in points {
            let [x, y] = [self.x_of(x), self.y_of(y)].map(|place| place.round() as u16);
            if drawn.insert((x, y)) {
                draw(&mut path, format_args!("M{x} {y}h0"));
            }
        }
        draw(&mut self.svg, format_args!("<path class=\"dots\" stroke=\"{color}\" d=\"{path}\"/>"));
    }

    /// Draws a dot with a text that appears under the pointer.
    pub fn marked_dot(&mut self, (x, y): (f64, f64), color: &str, text: &str) {
        let (x, y, text) = (self.x_of(x), self.y_of(y), escape(text));
        draw(
            &mut self.svg,
            format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\">\
                 <title>{text}</title></circle>"
            ),
        );
    }

    /// The plot as SVG.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

/// Appends to a page.
pub(super) fn draw(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("strings grow");
}

/// Text as content of HTML or of an attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_inside() {
        let text: fn(f64) -> String = |value| value.to_string();
        for (low, high) in [(1.0, 3.0), (100.0, 1e4), (50.0, 9e9), (1e-6, 1.0)] {
            let axis = PlotAxis::log("x", [low, high].into_iter(), text);
            let ticks = axis.ticks();
            assert!((2..=9).contains(&ticks.len()), "{ticks:?} from {low} to {high}");
        }
        let extreme = [f64::NAN, f64::INFINITY, 5e-324, f64::MIN_POSITIVE, f64::MAX];
        for high in [0.0, 0.3, 7.0, 12_345.0].into_iter().chain(extreme) {
            let ticks = PlotAxis::linear("x", high, text).ticks();
            assert!((3..=7).contains(&ticks.len()), "{ticks:?} to {high}");
        }
        let huge = (f64::MIN, f64::MAX);
        let ranges = [(-3.15, 3.15), (-0.3, 90.0), (5.0, 5.0), (1e20, 1e20), (7.0, 2.0), huge];
        for range in
            ranges.into_iter().chain([(f64::NAN, 1.0), (f64::MAX, f64::MAX), (0.0, 5e-324)])
        {
            let axis = PlotAxis::linear_between("x", range, text);
            let ticks = axis.ticks();
            assert!((3..=7).contains(&ticks.len()), "{ticks:?} in {range:?}");
            assert!(ticks.is_sorted_by(|left, right| left < right), "{ticks:?}");
            let (low, high) = axis.range;
            assert!(ticks.iter().all(|tick| (low..=high).contains(tick)), "{ticks:?} in {range:?}");
        }
        let ticks = PlotAxis::linear_between("x", (-3.15, 3.15), text).ticks();
        assert_eq!(ticks, [-2.0, 0.0, 2.0]);
        assert!(PlotAxis::log("none", std::iter::empty(), text).ticks().len() > 1);
    }

    #[test]
    fn dots_at_one_place_are_one() {
        let axis = || PlotAxis::linear("x", 10.0, |value| value.to_string());
        let mut frame = PlotFrame::new("plot", axis(), axis());
        let points = [(1.0, 1.0), (1.0, 1.0), (9.0, 1.0), (1.0, 9.0), (99.0, 99.0), (10.0, 10.0)];
        frame.dots(points.into_iter(), "red");
        assert_eq!(frame.finish().matches("h0").count(), 4, "two lie beyond, at the corner");
    }
}
