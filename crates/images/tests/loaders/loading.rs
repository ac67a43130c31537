//! Loading on other threads: order, errors, and images that cannot be read.

#[cfg(unix)]
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regard_images::data::{Broken, Loader, Loading, Pictures, class_folders};
use regard_images::{Decoding, Image, ImagesError, Normalize};

use super::{folder, refused, write};

fn loading(threads: usize, ahead: usize, broken: Broken) -> Loading {
    Loading {
        threads,
        ahead,
        broken,
    }
}

#[test]
fn examples_come_in_the_order_asked_for() {
    let order: Vec<usize> = (0..50).map(|i| i * 7 % 50).collect();
    for threads in [1, 2, 3, 8, 64] {
        for ahead in [1, 5] {
            let make = |i: usize| {
                if i.is_multiple_of(5) {
                    std::thread::yield_now();
                }
                Ok(i)
            };
            let loader =
                Loader::start(order.clone(), &loading(threads, ahead, Broken::Error), make)
                    .unwrap();
            let found: Vec<usize> = loader.map(Result::unwrap).collect();
            assert_eq!(found, order, "{threads} threads");
        }
    }
    let mut none = Loader::start(vec![], &Loading::default(), Ok).unwrap();
    assert!(none.next().is_none());
    for wrong in [
        loading(0, 1, Broken::Error),
        loading(1, 0, Broken::Error),
        loading(usize::MAX, 1, Broken::Error),
    ] {
        assert!(matches!(
            Loader::start(vec![1], &wrong, Ok),
            Err(ImagesError::Option { .. })
        ));
    }
}

fn broken(i: usize) -> ImagesError {
    ImagesError::Truncated {
        name: format!("{i}.png"),
    }
}

#[test]
fn errors_reach_the_consumer_in_their_place() {
    for threads in [1, 3] {
        let make = |i| if i == 4 { Err(broken(i)) } else { Ok(i) };
        let mut loader =
            Loader::start((0..10).collect(), &loading(threads, 2, Broken::Error), make).unwrap();
        for i in 0..4 {
            assert_eq!(loader.next().unwrap().unwrap(), i);
        }
        refused(loader.next().unwrap(), &["4.png"]);
        assert!(loader.next().is_none(), "an error ends it");

        let loader =
            Loader::start((0..10).collect(), &loading(threads, 2, Broken::Skip), make).unwrap();
        let mut loader = loader;
        let found: Vec<usize> = loader.by_ref().map(Result::unwrap).collect();
        assert_eq!(found, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(loader.skipped().len(), 1);

        // What is no broken image is not skipped, nor is a panic.
        let wrong = |i| {
            if i == 4 {
                Image::filled(0, 0, &[]).map(|_| i)
            } else {
                Ok(i)
            }
        };
        let loader =
            Loader::start((0..10).collect(), &loading(threads, 2, Broken::Skip), wrong).unwrap();
        assert_eq!(loader.filter(Result::is_err).count(), 1);
        let panics = |i| if i == 4 { panic!("number {i}") } else { Ok(i) };
        let mut loader = Loader::start(
            (0..10).collect(),
            &loading(threads, 2, Broken::Skip),
            panics,
        )
        .unwrap();
        refused(
            loader.find(Result::is_err).unwrap(),
            &["example 4", "number 4"],
        );
    }
}

#[test]
fn queues_are_bounded_and_dropping_stops_the_threads() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let make = move |i| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(i)
    };
    let mut loader =
        Loader::start((0..100_000).collect(), &loading(2, 3, Broken::Error), make).unwrap();
    for i in 0..10 {
        assert_eq!(loader.next().unwrap().unwrap(), i);
    }
    drop(loader);
    // The threads have ended: theirs is the last count. Each is at most its queue and one example ahead.
    assert_eq!(Arc::strong_count(&made), 1);
    assert!(made.load(Ordering::SeqCst) <= 10 + 2 * (3 + 1), "{made:?}");
}

#[test]
fn images_beyond_the_memory_are_read_again() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let read = move |i: usize| {
        counted.fetch_add(1, Ordering::SeqCst);
        match i {
            2 => Err(broken(i)),
            _ => Ok((Image::new(2, 2 + i, 1, vec![i as u8; 4 + 2 * i])?, i)),
        }
    };
    // 4, 6, 10, 12 and 14 bytes.
    let skipping = loading(2, 3, Broken::Skip);
    let (mut pictures, numbers, skipped) = Pictures::read(6, &skipping, 25, read).unwrap();
    assert_eq!((pictures.len(), pictures.kept(), skipped), (5, 3, 1));
    assert_eq!(
        (numbers, pictures.form()),
        (vec![0, 1, 3, 4, 5], Some([1, 2, 2]))
    );
    let image = |pictures: &Pictures, row: usize| pictures.get(row).unwrap().into_owned();
    let all: Vec<Image> = (0..5).map(|row| image(&pictures, row)).collect();
    assert_eq!(all[4].pixels(), [5; 14]);
    assert_eq!(pictures.normalize(5).unwrap(), Normalize::of(&all).unwrap());
    assert_eq!(
        pictures.normalize(2).unwrap(),
        Normalize::of(&all[..2]).unwrap()
    );
    let mut seen = vec![];
    let look = |row: usize, image: &Image| seen.push((row, image.pixels()[0]));
    pictures.each(look).unwrap();
    assert_eq!(seen, [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5)]);

    // Those that were asked for ahead are read once, others when they are asked for.
    let before = reads.load(Ordering::SeqCst);
    let rows = [4, 0, 3, 4];
    for told in [&rows[..], &rows[1..3], &[0, 1]] {
        pictures.ahead(told).unwrap();
        let found = pictures.all(&rows).unwrap();
        let expected: Vec<&Image> = rows.iter().map(|&row| &all[row]).collect();
        assert_eq!(
            found.iter().map(|image| &**image).collect::<Vec<_>>(),
            expected
        );
    }
    pictures.all(&[0, 2, 1]).unwrap();
    // Three, and one that was not of use.
    assert!(reads.load(Ordering::SeqCst) <= before + 3 * 3 + 1);
    assert!(pictures.all(&[]).unwrap().is_empty());
    pictures.ahead(&[]).unwrap();

    // Where all are kept, nothing else is.
    let held = Arc::new(());
    let own = held.clone();
    let read = move |i: usize| Ok((Image::filled(1, 1, &[i as u8])?, Arc::strong_count(&own)));
    let (kept, ..) = Pictures::read(3, &Loading::default(), 3, read).unwrap();
    assert_eq!((kept.kept(), Arc::strong_count(&held)), (3, 1));

    let taken = pictures.split_off(|row| row % 2 == 1);
    assert_eq!((pictures.len(), taken.len()), (3, 2));
    assert_eq!(
        [image(&pictures, 2), image(&taken, 1)],
        [all[4].clone(), all[3].clone()]
    );
}

#[test]
fn an_image_that_is_gone_is_an_error_where_it_is_asked_for() {
    let root = folder(&["a/1.png", "a/2.png"]);
    let data = class_folders(root.path(), None).unwrap();
    let read = move |i: usize| Ok((data.examples[i].image(&Decoding::default())?, ()));
    let (pictures, ..) = Pictures::read(2, &Loading::default(), 0, read).unwrap();
    std::fs::remove_file(root.path().join("a/2.png")).unwrap();
    assert!(pictures.get(0).is_ok());
    pictures.ahead(&[0, 1]).unwrap();
    for found in [pictures.all(&[0, 1]).map(|_| ()), pictures.each(|_, _| {})] {
        refused(found, &["2.png"]);
    }
}

#[test]
fn images_are_decoded_on_other_threads() {
    let root = folder(&["a/1.png", "a/2.png", "b/3.png"]);
    write(&root.path().join("b/0.png"), "no image");
    let data = Arc::new(class_folders(root.path(), None).unwrap());
    let make = |data: &Arc<regard_images::data::Dataset>| {
        let data = data.clone();
        move |i: usize| {
            Ok((
                data.examples[i].image(&Decoding::default())?,
                data.examples[i].label,
            ))
        }
    };
    let mut loader =
        Loader::start((0..4).collect(), &loading(2, 1, Broken::Skip), make(&data)).unwrap();
    let labels: Vec<_> = loader
        .by_ref()
        .map(|example| example.unwrap().1.unwrap())
        .collect();
    assert_eq!(labels, [0, 0, 1]);
    assert!(
        loader.skipped()[0]
            .to_string()
            .contains("0.png: not an image")
    );
    let loader =
        Loader::start((0..4).collect(), &loading(2, 1, Broken::Error), make(&data)).unwrap();
    assert!(loader.last().unwrap().is_err());
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_skipped_and_counted() {
    let root = folder(&["a/1.png"]);
    fs::create_dir(root.path().join("a/folder.png")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.path().join("a/link.png")).unwrap();
    let data = Arc::new(class_folders(root.path(), None).unwrap());
    let load = |broken| {
        let data = data.clone();
        let make = move |i: usize| data.examples[i].image(&Decoding::default());
        Loader::start((0..3).collect(), &loading(1, 1, broken), make).unwrap()
    };
    let mut loader = load(Broken::Skip);
    assert_eq!(loader.by_ref().map(Result::unwrap).count(), 1);
    let texts: Vec<String> = loader.skipped().iter().map(ToString::to_string).collect();
    assert!(
        texts[0].contains("folder.png: no file") && texts[1].contains("link.png: no file"),
        "{texts:?}"
    );
    refused(load(Broken::Error).last().unwrap(), &["folder.png"]);
}

/// What a process may not read is left out as a damaged image is; another failure of the system ends the loading.
#[test]
fn what_may_not_be_read_is_skipped_and_named() {
    let load = |kind: ErrorKind, broken| {
        let make = move |i: usize| match i {
            1 => Err(ImagesError::Read {
                path: PathBuf::from("locked.png"),
                source: kind.into(),
            }),
            _ => Ok(i),
        };
        Loader::start((0..3).collect(), &loading(1, 1, broken), make).unwrap()
    };
    let mut loader = load(ErrorKind::PermissionDenied, Broken::Skip);
    let made: Vec<usize> = loader.by_ref().map(Result::unwrap).collect();
    assert_eq!(made, [0, 2]);
    assert_eq!(loader.skipped().len(), 1);
    let told = loader.skipped()[0].to_string();
    assert!(told.contains("locked.png: cannot read"), "{told}");
    let denied = load(ErrorKind::PermissionDenied, Broken::Error);
    refused(denied.last().unwrap(), &["locked.png"]);
    let failed = load(ErrorKind::TimedOut, Broken::Skip);
    refused(failed.last().unwrap(), &["locked.png"]);
}

/// The same of a file whose owner forbids it.
#[test]
#[cfg(unix)]
fn a_locked_image_is_broken() {
    use std::os::unix::fs::PermissionsExt;
    let root = folder(&["a/1.png"]);
    let path = root.path().join("a/1.png");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        eprintln!("not tested, this user may read all files: locked images");
        return;
    }
    let data = class_folders(root.path(), None).unwrap();
    let result = data.examples[0].image(&Decoding::default());
    assert!(result.as_ref().is_err_and(ImagesError::is_broken_image));
    refused(result, &["1.png: cannot read"]);
}

#[test]
fn choices_have_names() {
    for broken in [Broken::Error, Broken::Skip] {
        assert_eq!(Broken::named(broken.name()).unwrap(), broken);
    }
    refused(Broken::named("drop"), &["broken", "drop", "skip"]);
}
