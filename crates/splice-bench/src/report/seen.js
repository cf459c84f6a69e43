// What a reader of the page sees, measured by the browser itself. Comes to an object of lists, each of
// which names what is wrong, and of the charts that were drawn.
(() => {
  document.querySelectorAll('details').forEach(one => { one.open = true; });
  // The widest of the usual faces, whichever this machine would take: what fits with it fits with all.
  const face = '"DejaVu Sans"';
  document.querySelectorAll('body, svg.chart').forEach(one => { one.style.fontFamily = face; });
  const canvas = document.createElementNS('http://www.w3.org/1999/xhtml', 'canvas').getContext('2d');
  canvas.font = `100px ${face}`;

  const rect = element => element.getBoundingClientRect();
  const short = element => (element.textContent || element.tagName).trim().slice(0, 60);

  // WCAG 2.2, relative luminance and contrast ratio.
  const numbers = colour => (colour.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([red, green, blue]) => {
    const linear = [red, green, blue].map(value => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const own = at.tagName === 'svg' && at.querySelector(':scope > .ground');
      const colour = own ? numbers(getComputedStyle(own).fill) : numbers(getComputedStyle(at).backgroundColor);
      if (colour.length >= 3 && (colour.length < 4 || colour[3] === 1)) return colour;
    }
    return [255, 255, 255];
  };
  const hasText = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const isShown = element => rect(element).width > 0 && rect(element).height > 0;
  const inSvg = element => element.namespaceURI === 'http://www.w3.org/2000/svg';

  const pale = [];
  let texts = 0;
  for (const element of document.querySelectorAll('*')) {
    if (['STYLE', 'TITLE', 'SCRIPT', 'title', 'desc', 'style'].includes(element.tagName)) continue;
    if (!hasText(element) || !isShown(element)) continue;
    texts += 1;
    const style = getComputedStyle(element);
    const ratio = contrast(numbers(inSvg(element) ? style.fill : style.color), ground(element));
    if (ratio < 4.5) pale.push(`${short(element)}: ${ratio.toFixed(2)}`);
  }
  const marks = '.line, .bar, .body, .wick, .median, .interval';
  for (const element of document.querySelectorAll(marks)) {
    const style = getComputedStyle(element);
    const colour = style.stroke === 'none' ? style.fill : style.stroke;
    const ratio = contrast(numbers(colour), ground(element));
    if (ratio < 3) pale.push(`${element.getAttribute('class')}: ${ratio.toFixed(2)}`);
  }

  const beyond = [], overlapping = [];
  const charts = [...document.querySelectorAll('svg.chart')].map(svg => {
    const frame = rect(svg);
    const labels = [...svg.querySelectorAll('text')].filter(isShown);
    for (const label of labels) {
      const box = rect(label);
      if (box.left < frame.left - 14 || box.right > frame.right + 14 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) {
        beyond.push(`${svg.id}: ${short(label)}`);
      }
    }
    labels.forEach((one, index) => {
      for (const other of labels.slice(index + 1)) {
        const [a, b] = [rect(one), rect(other)];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        // Boxes of lines of text touch although the letters do not.
        if (across > 1 && down > a.height / 3) overlapping.push(`${svg.id}: ${short(one)} / ${short(other)}`);
      }
    });
    const drawn = [...svg.querySelectorAll(marks)].filter(mark => {
      const box = rect(mark);
      return box.width > 0 || box.height > 0;
    });
    return {
      id: svg.id,
      width: frame.width,
      height: frame.height,
      marks: drawn.length,
      named: Boolean(svg.querySelector('title')?.textContent) && Boolean(svg.querySelector('desc')?.textContent),
      letters: Math.min(...labels.map(label => parseFloat(getComputedStyle(label).fontSize)))
        * frame.width / (svg.viewBox.baseVal?.width || frame.width),
    };
  });
  const root = document.documentElement;
  const wide = [...document.querySelectorAll('body *')]
    .filter(element => !element.closest('.scroll') && rect(element).right > root.clientWidth + 14)
    .map(short);
  return {
    charts, pale, beyond, overlapping, wide, texts,
    digit: canvas.measureText('0').width,
    overflow: root.scrollWidth - root.clientWidth,
    broken: document.querySelectorAll('parsererror').length,
    height: root.scrollHeight,
  };
})()
