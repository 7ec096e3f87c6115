//! Elements of pictures, as text.

use std::fmt::{Display, Write};

/// A text as it stands in HTML and SVG, also in attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// A picture that grows downwards.
#[derive(Clone, Debug)]
pub struct Picture {
    /// How wide it is.
    pub width: f64,
    /// How high it is by now.
    pub height: f64,
    elements: String,
}

/// Where an element is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// From the left.
    pub x: f64,
    /// From above.
    pub y: f64,
    /// To the right.
    pub width: f64,
    /// Down.
    pub height: f64,
}

impl Picture {
    /// Nothing, so wide.
    #[must_use]
    pub const fn new(width: f64) -> Self {
        Self { width, height: 0.0, elements: String::new() }
    }

    /// A rectangle; its title is seen when the pointer is on it.
    pub fn rectangle(&mut self, class: &str, area: Area, title: &str) {
        let Area { x, y, width, height } = area;
        self.element(
            &format!(
                "rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\""
            ),
            "rect",
            title,
        );
    }

    /// A path.
    pub fn path(&mut self, class: &str, path: &str, title: &str) {
        self.element(&format!("path class=\"{class}\" d=\"{path}\""), "path", title);
    }

    /// Words that begin, end or are centered there, as `anchor` says.
    pub fn words(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, words: impl Display) {
        let words = escape(&words.to_string());
        self.push(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
        ));
    }

    fn element(&mut self, element: &str, name: &str, title: &str) {
        if title.is_empty() {
            return self.push(&format!("<{element}/>"));
        }
        self.push(&format!("<{element}><title>{}</title></{name}>", escape(title)));
    }

    fn push(&mut self, element: &str) {
        self.elements.push_str(element);
        self.elements.push('\n');
    }

    /// The whole of it; a title says what it shows to whoever cannot see it.
    #[must_use]
    pub fn finish(&self, title: &str) -> String {
        let Self { width, height, elements } = self;
        let mut whole = String::with_capacity(elements.len() + 200);
        // Writing to a string does not fail.
        let _ = write!(
            whole,
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n{elements}</svg>\n",
            escape(title)
        );
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_an_element() {
        assert_eq!(escape("<a b=\"c\">'d' & e"), "&lt;a b=&quot;c&quot;&gt;&#39;d&#39; &amp; e");
        let mut picture = Picture::new(10.0);
        picture.words("label", (1.0, 2.0), "end", "<script>");
        picture.rectangle("bar", Area { x: 0.0, y: 0.0, width: 1.0, height: 1.0 }, "</title><script>");
        let svg = picture.finish("\"><script>");
        assert!(!svg.contains("<script>"), "{svg}");
        assert_eq!(svg.matches("&lt;script&gt;").count(), 3, "{svg}");
    }
}
