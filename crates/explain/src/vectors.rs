//! Vectors and matrices as they are typed: `1,2;3,4`.

use std::str::FromStr;

/// Numbers separated by commas.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector(pub Vec<f64>);

/// Vectors separated by semicolons. They may differ in length; the code that uses them checks this.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix(pub Vec<Vec<f64>>);

impl FromStr for Vector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        numbers(text).map(Self)
    }
}

impl FromStr for Matrix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A semicolon after the last vector does not begin an empty one.
        let text = text.trim().strip_suffix(';').unwrap_or(text);
        let rows = text
            .split(';')
            .zip(1..)
            .map(|(row, place)| numbers(row).map_err(|error| format!("vector {place}: {error}")));
        rows.collect::<Result<_, _>>().map(Self)
    }
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let text = text.trim();
    let inside = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inside
        .unwrap_or(text)
        .split(',')
        .map(|part| {
            let part = part.trim();
            part.parse()
                .map_err(|_| format!("{part:?} is not a number; write numbers such as 1,-0.5,2e3"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_read_with_or_without_brackets() {
        assert_eq!("1, -2.5,3e1".parse(), Ok(Vector(vec![1.0, -2.5, 30.0])));
        assert_eq!(
            "[1]; [2,3];".parse(),
            Ok(Matrix(vec![vec![1.0], vec![2.0, 3.0]]))
        );
        let error = "1,2;3,x".parse::<Matrix>().unwrap_err();
        assert!(error.contains("vector 2: \"x\" is not a number"), "{error}");
        assert!("".parse::<Vector>().is_err() && "1,,2".parse::<Vector>().is_err());
    }
}
