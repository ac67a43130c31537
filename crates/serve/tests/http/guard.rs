//! Who is answered: headers, hosts, origins, tokens, unsafe settings.

use regard_serve::{Config, Contents, ServeError, serve};

use crate::common::{Server, opened, translation};
use crate::server;

const TOKEN: &str = "a-token_of-24-characters";

#[test]
fn every_answer_has_strict_headers() {
    let server = server();
    for (path, status) in [
        ("/", 200),
        ("/app.js", 200),
        ("/api/traces", 200),
        ("/nowhere", 404),
        ("/api/trace/99/overview", 404),
        ("/api/trace/0/window?map=x", 400),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{policy}"
        );
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(
            answer.header("cross-origin-resource-policy"),
            Some("same-origin")
        );
        assert!(answer.header("access-control-allow-origin").is_none());
    }
}

#[test]
fn the_page_names_only_its_own_files() {
    let server = server();
    let page = server.get("/").text();
    assert!(
        !page.contains("http://")
            && !page.contains("https://")
            && !page.contains("<style")
            && !page.contains(" style=")
    );
    for file in page
        .split('"')
        .filter(|part| part.ends_with(".js") || part.ends_with(".css"))
    {
        assert_eq!(server.get(&format!("/{file}")).status, 200, "{file}");
    }
}

#[test]
fn other_names_and_other_sites_are_refused() {
    let server = server();
    let get = |headers: &[(&str, &str)]| server.ask("GET", "/api/traces", headers, b"");
    for host in [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "127.0.0.1:80:80",
    ] {
        let answer = get(&[("Host", host)]);
        assert_eq!(answer.status, 403, "{host}");
        assert!(answer.text().contains("IP address"), "{}", answer.text());
    }
    for host in [
        "localhost",
        "localhost:9000",
        "127.0.0.1",
        "[::1]:9000",
        "LOCALHOST",
    ] {
        assert_eq!(get(&[("Host", host)]).status, 200, "{host}");
    }
    let host = server.running.address.to_string();
    for origin in [
        "http://evil.example",
        "null",
        "https://localhost",
        "http://127.0.0.1:1",
        "",
    ] {
        for method in ["GET", "POST"] {
            let answer = server.ask(method, "/api/look", &[("Origin", origin)], b"{}");
            assert_eq!(answer.status, 403, "{method} {origin}");
            assert!(answer.text().contains("another site"));
        }
    }
    assert_eq!(get(&[("Origin", &format!("http://{host}"))]).status, 200);
    assert_eq!(
        get(&[
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors")
        ])
        .status,
        403
    );
    assert_eq!(
        get(&[
            ("Sec-Fetch-Site", "same-origin"),
            ("Sec-Fetch-Mode", "cors")
        ])
        .status,
        200
    );
}

#[test]
fn a_token_opens_the_page() {
    let config = Config {
        token: Some(TOKEN.to_owned()),
        ..Config::default()
    };
    let server = Server::start(config, vec![opened("t", translation(1))], None);
    assert!(server.running.url.ends_with(&format!("/?token={TOKEN}")));
    for (path, headers) in [
        ("/", vec![]),
        ("/api/traces", vec![("Cookie", "regard=1")]),
        ("/?token=wrong", vec![]),
        (
            "/api/traces",
            vec![("Authorization", "Bearer a-token_of-24-characterz")],
        ),
        ("/api/traces?token=a-token_of-24-characters", vec![]),
    ] {
        let answer = server.ask("GET", path, &headers, b"");
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.text().contains("token"));
    }
    let answer = server.get(&format!("/?token={TOKEN}"));
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let cookie = answer.header("set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(
        server
            .ask("GET", "/", &[("Cookie", &format!("a=b; {pair}"))], b"")
            .status,
        200
    );
    assert_eq!(
        server
            .ask(
                "GET",
                "/api/traces",
                &[("Authorization", &format!("Bearer {TOKEN}"))],
                b""
            )
            .status,
        200
    );
}

#[test]
fn an_open_address_is_printed_as_one_that_a_browser_opens() {
    let config = Config {
        listen: "0.0.0.0:0".parse().unwrap(),
        token: Some(TOKEN.to_owned()),
        ..Config::default()
    };
    let server = Server::start(config, vec![], None);
    assert!(
        server.running.url.starts_with("http://127.0.0.1:"),
        "{}",
        server.running.url
    );
}

#[test]
fn unsafe_settings_do_not_start() {
    let refused = |config: Config| {
        serve(config, Contents::default(), |_| panic!("it must not start")).unwrap_err()
    };
    let open = Config {
        listen: "0.0.0.0:0".parse().unwrap(),
        ..Config::default()
    };
    assert!(matches!(
        refused(open.clone()),
        ServeError::NeedsToken { .. }
    ));
    for token in ["", "short", "sixteen letters!", "sixteen&letters_"] {
        let error = refused(Config {
            token: Some(token.to_owned()),
            ..open.clone()
        });
        assert!(matches!(error, ServeError::Token { .. }), "{error}");
    }
    assert!(
        Config {
            token: Some(TOKEN.to_owned()),
            ..open
        }
        .check()
        .is_ok()
    );
    let taken = Server::start(Config::default(), vec![], None);
    let again = Config {
        listen: taken.running.address,
        ..Config::default()
    };
    assert!(refused(again).to_string().contains("choose another port"));
}
