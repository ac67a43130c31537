//! What the worker of the page calls.

use regard_serve::{Answer, Local};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// Writes to the browser's console.
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn complain(text: &str);
}

/// The answers of the page.
#[wasm_bindgen]
pub struct Viewer(Local);

/// An answer to the page.
#[wasm_bindgen]
pub struct Answered(Answer);

#[wasm_bindgen]
impl Viewer {
    /// With the model `name`, from the bytes of its file; an empty name is no model.
    ///
    /// # Errors
    /// As [`viewer`](crate::viewer).
    #[wasm_bindgen(constructor)]
    pub fn new(name: &str, bytes: &[u8]) -> Result<Viewer, JsError> {
        std::panic::set_hook(Box::new(|info| complain(&info.to_string())));
        let model = (!name.is_empty()).then_some((name, bytes));
        let local = crate::viewer(model).map_err(|error| JsError::new(&error.to_string()))?;
        Ok(Self(local))
    }

    /// The answer to a request of the page.
    pub fn answer(&self, method: &str, path: &str, body: Vec<u8>) -> Answered {
        Answered(self.0.answer(method, path, body))
    }

    /// Opens the traces of a file, and gives the number of the first.
    ///
    /// # Errors
    /// Bytes that are no traces.
    pub fn open(&self, name: &str, bytes: Vec<u8>) -> Result<u32, JsError> {
        let opened = self.0.open(name, bytes);
        let first = opened.map_err(|error| JsError::new(&error.to_string()))?;
        Ok(first as u32)
    }
}

#[wasm_bindgen]
impl Answered {
    /// The status of HTTP.
    #[wasm_bindgen(getter)]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Names and values of the headers, by turns.
    #[wasm_bindgen(getter)]
    pub fn headers(&self) -> Vec<String> {
        let headers = self.0.headers.iter();
        headers
            .flat_map(|(name, value)| [name.clone(), value.clone()])
            .collect()
    }

    /// The bytes.
    #[wasm_bindgen(getter)]
    pub fn body(&self) -> Vec<u8> {
        self.0.body.clone()
    }
}
