//! The files of the page.

/// Path, media type and content.
pub const FILES: [(&str, &str, &str); 21] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/index.html"),
    ),
    (
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("page/style.css"),
    ),
    (
        "/app.js",
        "text/javascript; charset=utf-8",
        include_str!("page/app.js"),
    ),
    (
        "/common.js",
        "text/javascript; charset=utf-8",
        include_str!("page/common.js"),
    ),
    (
        "/elements.js",
        "text/javascript; charset=utf-8",
        include_str!("page/elements.js"),
    ),
    (
        "/here.js",
        "text/javascript; charset=utf-8",
        include_str!("page/here.js"),
    ),
    (
        "/map.js",
        "text/javascript; charset=utf-8",
        include_str!("page/map.js"),
    ),
    (
        "/drawn.js",
        "text/javascript; charset=utf-8",
        include_str!("page/drawn.js"),
    ),
    (
        "/overview.js",
        "text/javascript; charset=utf-8",
        include_str!("page/overview.js"),
    ),
    (
        "/head.js",
        "text/javascript; charset=utf-8",
        include_str!("page/head.js"),
    ),
    (
        "/text.js",
        "text/javascript; charset=utf-8",
        include_str!("page/text.js"),
    ),
    (
        "/image.js",
        "text/javascript; charset=utf-8",
        include_str!("page/image.js"),
    ),
    (
        "/compare.js",
        "text/javascript; charset=utf-8",
        include_str!("page/compare.js"),
    ),
    (
        "/query.js",
        "text/javascript; charset=utf-8",
        include_str!("page/query.js"),
    ),
    (
        "/gradient.js",
        "text/javascript; charset=utf-8",
        include_str!("page/gradient.js"),
    ),
    (
        "/generation.js",
        "text/javascript; charset=utf-8",
        include_str!("page/generation.js"),
    ),
    (
        "/rollout.js",
        "text/javascript; charset=utf-8",
        include_str!("page/rollout.js"),
    ),
    (
        "/training.js",
        "text/javascript; charset=utf-8",
        include_str!("page/training.js"),
    ),
    (
        "/ask.js",
        "text/javascript; charset=utf-8",
        include_str!("page/ask.js"),
    ),
    (
        "/recorded.js",
        "text/javascript; charset=utf-8",
        include_str!("page/recorded.js"),
    ),
    (
        "/explain.js",
        "text/javascript; charset=utf-8",
        include_str!("page/explain.js"),
    ),
];
