//! Pictures with the crate image: coded and decoded as PNG, blurred, scaled, cut into tiles.

use std::io::Cursor;

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageFormat, Rgba, RgbaImage};

/// Runs it; the bytes of the coded pictures and a sum over the last one.
pub fn run(percent: usize) -> u64 {
    let (mut result, width) = (0, (640 * percent / 100).max(64) as u32);
    for number in 0..percent.div_ceil(25) as u32 {
        let picture = RgbaImage::from_fn(width, 480, |x, y| {
            let wave = ((x * (number + 3)) ^ (y * 5)) as u8;
            Rgba([wave, (x / 3) as u8, (y / 2) as u8, 255])
        });
        let coded = code(picture);
        let decoded = image::load_from_memory(&coded).expect("it was coded here");
        let blurred = decoded.fast_blur(2.0).to_rgba8();
        let scaled = imageops::resize(&blurred, 480, 360, FilterType::Triangle);
        // Tile by tile, as pictures that are too large for one go are filtered.
        let mut whole = RgbaImage::new(480, 360);
        for y in (0..360).step_by(40) {
            for x in (0..480).step_by(40) {
                let tile = imageops::crop_imm(&scaled, x, y, 40, 40).to_image();
                let tile = imageops::unsharpen(&tile, 1.0, 4);
                imageops::replace(&mut whole, &imageops::rotate180(&tile), x.into(), y.into());
            }
        }
        result += coded.len() as u64 + whole.as_raw().iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }
    result
}

fn code(picture: RgbaImage) -> Vec<u8> {
    let mut coded = Cursor::new(Vec::new());
    DynamicImage::from(picture).write_to(&mut coded, ImageFormat::Png).expect("memory can be written");
    coded.into_inner()
}
