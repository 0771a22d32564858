//! Elements of SVG, written one after the other

use std::fmt::Write as _;

use super::style::STYLE;

/// A document that is being written
#[derive(Debug, Default)]
pub(super) struct Canvas {
    body: String,
}

impl Canvas {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, w: f64, h: f64, radius: f64, class: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{}" y="{}" width="{}" height="{}" rx="{}" class="{class}"/>"#,
            number(x),
            number(y),
            number(w),
            number(h),
            number(radius)
        );
    }

    /// A rectangle without class, in one colour
    pub(super) fn fill(&mut self, x: f64, y: f64, w: f64, h: f64, radius: f64, colour: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{}" y="{}" width="{}" height="{}" rx="{}" fill="{colour}"/>"#,
            number(x),
            number(y),
            number(w),
            number(h),
            number(radius)
        );
    }

    pub(super) fn circle(&mut self, x: f64, y: f64, radius: f64, colour: &str) {
        let _ = writeln!(
            self.body,
            r#"<circle cx="{}" cy="{}" r="{}" fill="{colour}" class="dot"/>"#,
            number(x),
            number(y),
            number(radius)
        );
    }

    pub(super) fn path(&mut self, path: &str, stroke_width: f64, class: &str) {
        let _ = writeln!(
            self.body,
            r#"<path d="{path}" stroke-width="{}" class="{class}"/>"#,
            number(stroke_width)
        );
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text x="{}" y="{}" class="{class}">{}</text>"#,
            number(x),
            number(y),
            escape(text)
        );
    }

    /// Begins a group that shows a text when it is pointed at
    pub(super) fn begin(&mut self, tooltip: &str) {
        let _ = writeln!(self.body, "<g><title>{}</title>", escape(tooltip));
    }

    /// Ends what `begin` began
    pub(super) fn end(&mut self) {
        self.body += "</g>\n";
    }

    /// The document
    pub(super) fn finish(self, width: f64, height: f64, title: &str) -> String {
        let (width, height, title) = (width.ceil(), height.ceil(), escape(title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"18\" class=\"page\"/>\n{}</svg>\n",
            width - 1.0,
            height - 1.0,
            self.body
        )
    }
}

/// A coordinate with no more digits than can be seen
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A text that XML allows: names are whatever a file says they are
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // XML 1.0, section 2.2
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}
