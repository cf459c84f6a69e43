use ratatui_core::buffer::Buffer;

/// What a person sees, without blanks at the end.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let lines = buffer.area.rows().map(|row| {
        let cells = row
            .columns()
            .filter_map(|cell| buffer.cell((cell.x, cell.y)));
        let text: String = cells.map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned()
    });
    lines.collect()
}
