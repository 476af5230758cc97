// SPDX-License-Identifier: Apache-2.0
//! Page layout: how a browser lays a page out, for tests of pages.
//!
//! A script that a test adds measures the page: each plot has something drawn in it, no text lies
//! on another one or outside its plot, nothing is wider than the screen, and the smallest letters
//! are legible. Without Chromium there is no browser; `CHROMIUM` names one.

use std::path::{Path, PathBuf};
use std::process::Command;

use esker_workbench::report::plot_frame::escape;
use serde_json::Value;

/// Screens: a phone, a tablet, a desk.
pub const WIDTHS: [u32; 3] = [390, 1_024, 1_600];

/// Smallest legible letters of a plot, in pixels of the screen.
const LETTER_PIXELS_MIN: f64 = 9.0;

/// Smallest picture of a page that shows something, in bytes.
pub const PICTURE_BYTES_MIN: usize = 20_000;

/// Replaces the outer page by its measurements of the inner one.
const MEASURE: &str = r#"<script>
const found = { plots: 0, empty: [], overlapping: [], outside: [], letters: 1e9,
  excess: document.documentElement.scrollWidth - innerWidth };
const crosses = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
for (const figure of document.querySelectorAll("figure")) {
  const title = figure.querySelector("figcaption").textContent;
  const svg = figure.querySelector("svg"), frame = svg.getBoundingClientRect();
  found.plots += 1;
  const marks = [...svg.querySelectorAll(".line, .dots, circle, rect")];
  const drawn = marks.some(mark => { const box = mark.getBBox(); return box.width + box.height > 0; });
  if (!drawn || frame.width < 250 || frame.height < 30) found.empty.push(title);
  const texts = [...svg.querySelectorAll("text")];
  const boxes = texts.map(text => text.getBoundingClientRect());
  boxes.forEach((box, index) => {
    const inside = box.left > frame.left - 1 && box.right < frame.right + 1 &&
      box.top > frame.top - 1 && box.bottom < frame.bottom + 1;
    if (!inside) found.outside.push(title + ": " + texts[index].textContent);
    boxes.slice(0, index).forEach((other, before) => { if (crosses(box, other))
      found.overlapping.push(title + ": " + texts[before].textContent + ", " + texts[index].textContent);
    });
  });
  const scale = frame.width / svg.viewBox.baseVal.width;
  for (const text of texts)
    found.letters = Math.min(found.letters, parseFloat(getComputedStyle(text).fontSize) * scale);
}
parent.document.body.textContent = "measured" + JSON.stringify(found) + "measured";
</script></body>"#;

/// The browser that this machine has.
pub fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
    let runs = |name: &PathBuf| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    named.into_iter().chain(names).find(runs)
}

/// Runs the browser on `page` and returns its output.
pub fn show(
    browser: &Path,
    directory: &Path,
    page: &str,
    width: u32,
    more: &str,
) -> (String, String) {
    let profile = format!("--user-data-dir={}", directory.join("profile").display());
    let size = format!("--window-size={width},4000");
    let url = format!("file://{}", directory.join(page).display());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--disable-dev-shm-usage", "--enable-logging=stderr", &profile, &size, more, &url])
        .output()
        .expect("the browser runs");
    let [printed, logged] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{logged}");
    (printed, logged)
}

/// The measurements of the script for a page at a width. The page is in a frame of another one,
/// since windows are not as narrow as a phone.
pub fn measure(browser: &Path, directory: &Path, html: &str, width: u32) -> Value {
    let scripted = escape(&html.replace("</body>", MEASURE));
    let frame = format!(
        "<!DOCTYPE html><html><body><iframe style=\"border:0\" width=\"{width}\" \
         height=\"4000\" srcdoc=\"{scripted}\"></iframe></body></html>"
    );
    std::fs::write(directory.join("scripted.html"), frame).expect("written");
    let (printed, logged) = show(browser, directory, "scripted.html", width, "--dump-dom");
    let found = printed.split("measured").nth(1);
    let found = found.unwrap_or_else(|| panic!("no measurement: {logged}"));
    let found = found.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&");
    serde_json::from_str(&found).expect("JSON")
}

/// Fails unless the page has this many plots, all legible, and fits the width.
pub fn check_layout(name: &str, found: &Value, width: u32, plots: u64) {
    let context = format!("{name} at {width} pixels: {found}");
    assert_eq!(found["plots"], plots, "{context}");
    for list in ["empty", "overlapping", "outside"] {
        assert_eq!(found[list], serde_json::json!([]), "{list}: {context}");
    }
    assert!(found["excess"].as_f64().is_some_and(|pixels| pixels <= 0.0), "{context}");
    assert!(found["letters"].as_f64().is_some_and(|size| size >= LETTER_PIXELS_MIN), "{context}");
}
