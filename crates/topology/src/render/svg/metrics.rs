//! How wide a text is at most
//!
//! The font is the viewer's choice. The widths are those of DejaVu Sans, the widest of those that
//! the style sheet names, rounded up; other fonts leave a little room.

/// Width of a text at a font size, in pixels
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// Width of a text in bold, which is wider by an eighth at most
pub(super) fn width_bold(text: &str, size: f64) -> f64 {
    width(text, size) * BOLD
}

/// The text in bold, or as much of its beginning as fits, with an ellipsis
pub(super) fn fit_bold(text: &str, size: f64, room: f64) -> String {
    fit(text, size, room / BOLD)
}

/// The text, or as much of its beginning as fits, with an ellipsis
pub(super) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut left = room - advance('…') * size;
    for c in text.chars() {
        left -= advance(c) * size;
        if left < 0.0 {
            break;
        }
        cut.push(c);
    }
    format!("{}…", cut.trim_end())
}

const BOLD: f64 = 1.13;

/// Width of a character, in parts of the font size
fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '\'' => 0.28,
        ' ' | '.' | ',' | ':' | ';' | '|' | '!' | 'I' | '·' => 0.33,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.42,
        'm' | 'W' | 'M' | '@' | '%' | '…' | '×' => 1.0,
        'w' | 'N' | 'O' | 'Q' | 'G' | 'D' | 'H' | 'U' => 0.82,
        c if c.is_ascii_digit() => 0.64,
        c if c.is_ascii_lowercase() => 0.62,
        c if c.is_ascii_uppercase() => 0.72,
        c if c.is_ascii() => 0.84,
        // Wide scripts take a whole square
        _ => 1.05,
    }
}
