//! Colours and fonts

/// The style sheet: light, and dark where the viewer prefers it
pub(super) const STYLE: &str = r"
text { font-family: system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif; font-size: 12px; fill: #1f2937; }
.title { font-size: 22px; font-weight: 700; }
.subtitle { font-size: 13px; fill: #55617a; }
.heading { font-size: 13px; font-weight: 600; fill: #55617a; }
.name { font-size: 13px; font-weight: 600; }
.small { font-size: 11px; fill: #55617a; }
.tiny { font-size: 10px; fill: #55617a; }
.page { fill: #ffffff; stroke: #dfe4ee; }
.package { fill: #f3f5fa; stroke: #ccd4e3; stroke-width: 1.2; }
.node { fill: #ffffff; stroke: #b9c4d8; stroke-width: 1.2; }
.cache { fill: #f1f4f9; stroke: #dbe2ee; }
.thread { fill: #a9b7cf; }
.forbidden { fill: #ffffff; stroke: #b9c4d8; stroke-width: 1; stroke-dasharray: 2 2; }
.bridge { fill: #f8f9fc; stroke: #d5dcea; }
.switch { fill: none; stroke: #97a5bf; stroke-width: 1.1; stroke-dasharray: 5 3; }
.gpu { fill: #e6f4d7; stroke: #6aa312; stroke-width: 1.4; }
.nic { fill: #e2edfd; stroke: #3f7fd9; stroke-width: 1.2; }
.disk { fill: #fbf0da; stroke: #c08a25; stroke-width: 1.2; }
.off { opacity: 0.5; }
.instance { fill: #c3de9c; }
.nvlink { fill: none; stroke: #6aa312; stroke-linecap: round; opacity: 0.85; }
.fabric { fill: #e6f4d7; stroke: #6aa312; stroke-width: 1.4; }
.card { fill: #f8f9fc; stroke: #dbe2ee; }
.dot { stroke: #ffffff; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
text { fill: #e7ebf3; }
.subtitle, .heading, .small, .tiny { fill: #a3aec3; }
.page { fill: #12161f; stroke: #2a3242; }
.package { fill: #181e2a; stroke: #344057; }
.node { fill: #1e2533; stroke: #46546f; }
.cache { fill: #252e3f; stroke: #374359; }
.thread { fill: #6d7c98; }
.forbidden { fill: #1e2533; stroke: #5a6885; }
.bridge { fill: #222a39; stroke: #374359; }
.switch { stroke: #6d7c98; }
.gpu { fill: #2a3d17; stroke: #86c232; }
.nic { fill: #1b2f4f; stroke: #5b9bf0; }
.disk { fill: #41331a; stroke: #d9a441; }
.instance { fill: #4d6b26; }
.nvlink { stroke: #86c232; }
.fabric { fill: #2a3d17; stroke: #86c232; }
.card { fill: #1a202d; stroke: #2f394c; }
.dot { stroke: #12161f; }
}
";
