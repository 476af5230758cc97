// SPDX-License-Identifier: Apache-2.0
//! Plot: figures as SVG.

use esker_base::{Error, Kind, Result};
use plotters::prelude::*;

const SIZE: (u32, u32) = (720, 400);

/// A histogram: `counts[i]` queries had the value `i`.
///
/// # Errors
/// `Invalid` if it cannot be drawn.
pub fn histogram(title: &str, x: &str, y: &str, counts: &[u64]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, title, (x, y), counts)
        .map_err(|error| Error::new(Kind::Invalid, format!("draw {title}: {error}")))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    (x, y): (&str, &str),
    counts: &[u64],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = counts.iter().copied().max().unwrap_or(0).max(1);
    let last = u32::try_from(counts.len().max(2))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((0..last).into_segmented(), 0..highest + highest / 10 + 1)?;
    chart.configure_mesh().disable_x_mesh().x_desc(x).y_desc(y).draw()?;
    let bars = (0..).zip(counts).map(|(value, &count)| {
        let from = (SegmentValue::Exact(value), 0);
        let mut bar =
            Rectangle::new([from, (SegmentValue::Exact(value + 1), count)], BLUE.filled());
        bar.set_margin(0, 0, 4, 4);
        bar
    });
    chart.draw_series(bars)?;
    area.present()?;
    drop(chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_its_words_and_bars() {
        let svg = histogram("Tables asked", "tables", "queries", &[0, 5, 0, 1]).expect("drawn");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["Tables asked", "tables", "queries"] {
            assert!(svg.contains(word), "{word}");
        }
        histogram("Nothing", "x", "y", &[]).expect("drawn");
    }
}
