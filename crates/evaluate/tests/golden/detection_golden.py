"""Golden numbers of average precision, and of the mean IoU of masks, by pycocotools.

Run in this folder: `python detection_golden.py`, which writes detection.json (pycocotools 2.0.11). Images have random objects, of
which some are crowds; what is found is some of them moved a little, some with the wrong class, doubles, and some from nowhere. Scores
have few digits, so that there are ties; one image has more than 100 objects of a class. `drawn` are images as a bootstrap draws them,
some of them several times: the scores of these are those of a data set that has so many copies of them, each an image of its own.
"""

import contextlib
import io
import json
import pathlib

import numpy as np
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

SIZE = 40


def box(random):
    x, y = random.integers(0, SIZE - 8, 2)
    width, height = random.integers(4, 12, 2)
    return [float(v) for v in (x, y, min(width, SIZE - x), min(height, SIZE - y))]


def moved(random, bounds, most):
    return [float(v) for v in np.maximum(np.array(bounds) + random.integers(-most, most + 1, 4) / 4, 0.25)]


def pixels(bounds):
    x, y, width, height = (round(v) for v in bounds)
    image = np.zeros((SIZE, SIZE), np.uint8)
    image[y:y + max(height, 1), x:x + max(width, 1)] = 1
    return rle.encode(np.asfortranarray(image))


def case(seed, images, classes, crowds, most_found):
    random = np.random.default_rng(seed)
    truth, found = [], []
    for image in range(images):
        for _ in range(random.integers(0, 5)):
            truth.append(dict(image=image, category=int(random.integers(classes)), bbox=box(random),
                              crowd=int(random.random() < crowds)))
        of_image = [object for object in truth if object["image"] == image]
        for object in of_image:
            for _ in range(random.integers(0, 3)):
                category = object["category"] if random.random() < 0.8 else int(random.integers(classes))
                found.append(dict(image=image, category=category, bbox=moved(random, object["bbox"], 6),
                                  score=float(random.integers(1, 10)) / 10))
        for _ in range(random.integers(0, most_found)):
            found.append(dict(image=image, category=int(random.integers(classes)), bbox=box(random),
                              score=float(random.integers(1, 10)) / 10))
    drawn = sorted(int(image) for image in np.random.default_rng(100 + seed).integers(0, images, images))
    copies = [of_images(drawn, objects) for objects in (truth, found)]
    return dict(images=images, classes=classes, truth=truth, found=found, **precisions(images, classes, truth, found),
                mean_iou=[[least, mean_iou(images, truth, found, least)] for least in (0.0, 0.5)],
                drawn=dict(images=drawn, **precisions(images, classes, *copies), mean_iou=mean_iou(images, *copies, 0.5)))


def of_images(drawn, objects):
    """The objects of these images, the first of which is image 0."""
    return [dict(object, image=i) for i, image in enumerate(drawn) for object in objects if object["image"] == image]


def mean_iou(images, truth, found, least):
    """Over all true objects that are no crowd. Of a class and a score of at least `least` the best-scored object comes first (of equal
    ones the first) and takes the free true object of largest IoU (of equal ones the last); what nobody takes has an IoU of 0."""
    total, count = 0.0, 0
    for image in range(images):
        there = [o for o in truth if o["image"] == image and not o["crowd"]]
        sure = sorted((o for o in found if o["image"] == image and o["score"] >= least), key=lambda o: -o["score"])
        count += len(there)
        if not there or not sure:
            continue
        overlap = rle.iou([pixels(o["bbox"]) for o in sure], [pixels(o["bbox"]) for o in there], [0] * len(there))
        free = [True] * len(there)
        for row, object in zip(overlap, sure):
            fits = [i for i, other in enumerate(there) if free[i] and other["category"] == object["category"] and row[i] > 0]
            if fits:
                best = max(fits, key=lambda i: (row[i], i))
                free[best] = False
                total += row[best]
    return float(total / count) if count else None


def precisions(images, classes, truth, found):
    annotations = [
        dict(id=i + 1, image_id=o["image"], category_id=o["category"], bbox=o["bbox"], area=o["bbox"][2] * o["bbox"][3],
             iscrowd=o["crowd"], segmentation=pixels(o["bbox"]))
        for i, o in enumerate(truth)
    ]
    coco = COCO()
    coco.dataset = dict(images=[dict(id=i, height=SIZE, width=SIZE) for i in range(images)], annotations=annotations,
                        categories=[dict(id=c, name=str(c)) for c in range(classes)])
    results = {}
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        for kind in ("bbox", "segm"):
            entries = [dict(image_id=o["image"], category_id=o["category"], score=o["score"],
                            **(dict(bbox=o["bbox"]) if kind == "bbox" else dict(segmentation=pixels(o["bbox"]))))
                       for o in found]
            judged = COCOeval(coco, coco.loadRes(entries), kind)
            judged.evaluate()
            judged.accumulate()
            judged.summarize()
            precision = judged.eval["precision"][:, :, :, 0, 2]  # [least IoUs, recalls, classes]
            of_class = [None if (p := precision[:, :, c]).max() < 0 else float(p[p > -1].mean()) for c in range(classes)]
            results[kind] = dict(ap=float(judged.stats[0]), ap50=float(judged.stats[1]), ap75=float(judged.stats[2]), classes=of_class)
    return results


def main():
    cases = [case(1, 12, 3, 0.0, 3), case(2, 12, 3, 0.3, 3), case(3, 3, 1, 0.2, 130), case(4, 1, 2, 0.0, 1), case(5, 40, 6, 0.1, 2)]
    (pathlib.Path(__file__).parent / "detection.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
