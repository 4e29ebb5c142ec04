//! What the HTTP server answers, in one table. Its answers are made from what commands work on, too.

use super::commands::{Context, metrics};
use super::dashboard;
use crate::http::{Answer, Route};
use crate::metrics::text;

/// A path whose answer says something of the switch.
const fn of_switch(
    path: &'static str,
    media_type: &'static str,
    run: fn(&Context, Option<&str>) -> Answer,
) -> Route<Context> {
    Route { path, media_type, is_public: false, is_slow: false, run }
}

const fn json(path: &'static str, run: fn(&Context, Option<&str>) -> Answer) -> Route<Context> {
    of_switch(path, "application/json", run)
}

/// The same, made by another thread.
const fn slow_json(path: &'static str, run: fn(&Context, Option<&str>) -> Answer) -> Route<Context> {
    Route { is_slow: true, ..json(path, run) }
}

/// A file of the dashboard's page, which is the same in every Weir.
macro_rules! file {
    ($path:literal $media_type:literal $name:literal) => {
        Route {
            path: $path,
            media_type: concat!($media_type, "; charset=utf-8"),
            is_public: true,
            is_slow: false,
            run: |_, _| Answer::Now(Ok(include_str!(concat!("../dashboard/page/", $name)).into())),
        }
    };
    ($name:literal) => {
        Route {
            path: concat!("/", $name),
            ..file!("" "text/javascript" $name)
        }
    };
}

/// The paths.
pub static ROUTES: &[Route<Context>] = &[
    file!("/" "text/html" "index.html"),
    file!("/style.css" "text/css" "style.css"),
    file!("main.js"),
    file!("/icon.svg" "image/svg+xml" "icon.svg"),
    file!("api.js"),
    file!("chart.js"),
    file!("dom.js"),
    file!("flows.js"),
    file!("format.js"),
    file!("graphs.js"),
    file!("layout.js"),
    file!("ports.js"),
    file!("status.js"),
    file!("tables.js"),
    file!("topology.js"),
    file!("trace.js"),
    file!("workers.js"),
    of_switch("/metrics", text::MEDIA_TYPE, |context, _| Answer::Pieces(metrics::all(context))),
    json("/api/now", dashboard::now),
    json("/api/history", dashboard::history),
    json("/api/topology", dashboard::topology::report),
    json("/api/tables", dashboard::tables),
    slow_json("/api/top", dashboard::top),
    slow_json("/api/flows", dashboard::search::report),
    slow_json("/api/explain", dashboard::explain::report),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The names behind `from "./…"`, `src="/…"` and `href="/…"`.
    fn named(text: &str) -> Vec<String> {
        let marks = ["from \"./", "import \"./", "src=\"/", "href=\"/"];
        let after = marks.iter().flat_map(|mark| text.split(mark).skip(1));
        after.filter_map(|rest| rest.split('"').next()).map(|name| format!("/{name}")).collect()
    }

    #[test]
    fn every_file_that_the_page_loads_is_here_and_nothing_is_from_elsewhere() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/page");
        let mut loaded = vec!["/".to_owned()];
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            loaded.extend(named(&text));
            // The name space of SVG is no address that is loaded.
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "{elsewhere}");
            for unsafe_way in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=\"", " onclick="]
            {
                assert!(!text.contains(unsafe_way), "{unsafe_way}");
            }
        }
        loaded.sort();
        loaded.dedup();
        let mut files: Vec<_> = ROUTES.iter().filter(|route| route.is_public).map(|route| route.path).collect();
        files.sort_unstable();
        assert_eq!(loaded, files);
    }

    #[test]
    fn only_files_are_public() {
        for route in ROUTES {
            assert_eq!(route.is_public, !route.path.starts_with("/api/") && route.path != "/metrics", "{}", route.path);
        }
    }

    #[test]
    fn the_documentation_has_each_path_of_the_dashboard() {
        let documentation = include_str!("../../../../docs/dashboard.md");
        for route in ROUTES.iter().filter(|route| route.path.starts_with("/api/")) {
            assert!(
                documentation.contains(&format!("\n### `{}", route.path)),
                "docs/dashboard.md lacks {}",
                route.path
            );
        }
    }
}
