// SPDX-License-Identifier: Apache-2.0
//! Curves: lines and points over logarithmic axes, as SVG.

use esker_base::{Error, Kind, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

const PANEL: (u32, u32) = (640, 440);

const COLORS: [RGBColor; 4] = [
    RGBColor(0x1f, 0x5f, 0xa8),
    RGBColor(0xc4, 0x4e, 0x1a),
    RGBColor(0x2e, 0x7d, 0x32),
    RGBColor(0x6a, 0x3d, 0x9a),
];

/// A line through its points, or points alone.
#[derive(Clone, Debug)]
pub struct ChartCurve {
    /// Its text in the legend.
    pub name: String,
    /// Points with positive coordinates, in order of the first.
    pub points: Vec<(f64, f64)>,
    /// True if a line connects the points.
    pub is_line: bool,
}

/// A chart: curves over two logarithmic axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Text above the chart.
    pub title: String,
    /// Text under the horizontal axis.
    pub x: String,
    /// Text beside the vertical axis.
    pub y: String,
    /// Up to four lines, and as many sets of points in the same colors.
    pub curves: Vec<ChartCurve>,
}

/// Draws charts side by side, as SVG.
///
/// # Errors
/// `Invalid` if they cannot be drawn: without points, or with numbers that are not positive.
pub fn draw(charts: &[Chart]) -> Result<String> {
    let mut svg = String::new();
    let failure = |error: Box<dyn std::error::Error>| {
        Error::new(Kind::Invalid, format!("draw a chart: {error}"))
    };
    draw_all(&mut svg, charts).map_err(failure)?;
    Ok(svg)
}

type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw_all(svg: &mut String, charts: &[Chart]) -> DrawResult {
    let count = u32::try_from(charts.len().max(1))?;
    let area = SVGBackend::with_string(svg, (PANEL.0 * count, PANEL.1)).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.split_evenly((1, charts.len().max(1)));
    for (panel, chart) in panels.iter().zip(charts) {
        draw_one(panel, chart)?;
    }
    area.present()?;
    Ok(())
}

fn draw_one(panel: &DrawingArea<SVGBackend<'_>, Shift>, chart: &Chart) -> DrawResult {
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    if points().count() == 0 || !points().all(|(x, y)| *x > 0.0 && *y > 0.0) {
        return Err("no points, or some without a logarithm".into());
    }
    // Leaves space for the legend above the curves.
    let range = |values: &mut dyn Iterator<Item = f64>, headroom: f64| {
        let (low, high) =
            values.fold((f64::MAX, 0_f64), |(low, high), value| (low.min(value), high.max(value)));
        (low / 1.3)..(high * 1.3 * (high / low).powf(headroom))
    };
    let x = range(&mut points().map(|point| point.0), 0.0);
    let y = range(&mut points().map(|point| point.1), 0.35);
    let mut plot = ChartBuilder::on(panel)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    plot.configure_mesh()
        .light_line_style(WHITE)
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .draw()?;
    let (mut lines, mut sets) = (COLORS.iter().cycle(), COLORS.iter().cycle());
    for curve in &chart.curves {
        let points = curve.points.iter().copied();
        if curve.is_line {
            let color = *lines.next().expect("a cycle");
            plot.draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        } else {
            let color = *sets.next().expect("a cycle");
            plot.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?
                .label(&curve.name)
                .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
        }
    }
    plot.configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Formats a number for people.
fn label(value: &f64) -> String {
    let value = *value;
    match value {
        _ if value >= 1e9 => format!("{} G", round(value / 1e9)),
        _ if value >= 1e6 => format!("{} M", round(value / 1e6)),
        _ if value >= 1e4 => format!("{} k", round(value / 1e3)),
        _ => round(value),
    }
}

fn round(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> Chart {
        let curve =
            |name: &str, is_line| ChartCurve { name: name.into(), points: points.into(), is_line };
        let curves = vec![curve("a line", true), curve("some points", false)];
        Chart { title: "A title".into(), x: "ranks".into(), y: "bytes".into(), curves }
    }

    #[test]
    fn a_chart_has_its_words() {
        let one = chart(&[(1.0, 10.0), (1000.0, 3e9)]);
        let svg = draw(&[one.clone(), one]).expect("drawn");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["A title", "ranks", "bytes", "a line", "some points", "<circle", "<polyline"] {
            assert!(svg.contains(word), "{word}");
        }
    }

    #[test]
    fn what_has_no_logarithm_is_refused() {
        for points in [&[][..], &[(0.0, 1.0)], &[(1.0, -1.0)]] {
            assert_eq!(draw(&[chart(points)]).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn numbers_read_well() {
        let labels = [0.5, 1.0, 4096.0, 131_072.0, 2e6, 4.3e9].map(|value| label(&value));
        assert_eq!(labels, ["0.5", "1", "4096", "131.072 k", "2 M", "4.3 G"]);
    }
}
