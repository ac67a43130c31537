//! Who may ask: `Host`, `Origin` and the token are checked before anything else, and every answer has strict headers.
//!
//! A page of another site can send requests to this machine, and by DNS rebinding under a name of its own. So the name that the
//! browser used must be `localhost` or an IP address, which no site can take over, and a request that a script of another page sent
//! is refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::{App, Refusal};

/// What the page may load and run: its own files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// Refuses what must not pass, and puts [`HEADERS`] on every answer.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match admit(&app, &request) {
        Ok(None) => next.run(request).await,
        Ok(Some(response)) => response,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// `Ok(Some(_))` is the answer that sets the cookie.
fn admit(app: &App, request: &Request) -> Result<Option<Response>, Refusal> {
    let forbidden = |sentence: &str| Refusal(StatusCode::FORBIDDEN, sentence.to_owned());
    let headers = request.headers();
    let host = text(headers, &header::HOST).unwrap_or_default();
    if headers.get_all(header::HOST).iter().count() != 1 || !is_address(host) {
        return Err(forbidden(
            "this server is reached by an IP address or as localhost, not by another name: open the address that it printed",
        ));
    }
    if let Some(origin) = headers.get(header::ORIGIN)
        && !(origin.to_str())
            .is_ok_and(|origin| origin.eq_ignore_ascii_case(&format!("http://{host}")))
    {
        return Err(forbidden("a page of another site may not ask this server"));
    }
    let site = text(headers, &HeaderName::from_static("sec-fetch-site"));
    let mode = text(headers, &HeaderName::from_static("sec-fetch-mode"));
    if matches!(site, Some("cross-site" | "same-site")) && mode != Some("navigate") {
        return Err(forbidden(
            "a page of another site may not load from this server",
        ));
    }
    let Some(token) = &app.token else {
        return Ok(None);
    };
    let cookie = format!("regard_{}", app.port);
    let given = (request.uri().query()).and_then(|query| {
        query
            .split('&')
            .find_map(|part| part.strip_prefix("token="))
    });
    if let Some(given) = given
        && request.uri().path() == "/"
        && same(given, token)
    {
        let set = format!("{cookie}={token}; Path=/; HttpOnly; SameSite=Strict");
        let headers = [
            (header::LOCATION, "/".to_owned()),
            (header::SET_COOKIE, set),
        ];
        return Ok(Some((StatusCode::SEE_OTHER, headers).into_response()));
    }
    let bearer =
        text(headers, &header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    let mut cookies = (headers.get_all(header::COOKIE).iter())
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split("; "))
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| *name == cookie)
        .map(|(_, value)| value);
    match bearer.is_some_and(|given| same(given, token)) || cookies.any(|given| same(given, token)) {
        true => Ok(None),
        false => Err(Refusal(
            StatusCode::UNAUTHORIZED,
            "this server needs its token: open the address that it printed, with ?token= at its end".to_owned(),
        )),
    }
}

/// Whether a `Host` is `localhost` or an IP address, with or without a port.
fn is_address(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let inner = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || inner.unwrap_or(name).parse::<IpAddr>().is_ok()
}

/// Whether two texts are equal, in a time that does not depend on where they differ.
fn same(a: &str, b: &str) -> bool {
    let differs = (a.bytes().zip(b.bytes())).fold(0, |differs, (a, b)| differs | (a ^ b));
    a.len() == b.len() && differs == 0
}
