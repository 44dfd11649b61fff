// Columns of numbers, as replay/packing.py writes them: changes from frame to frame, seven bits per byte.

function unpack(packed) {
  const text = atob(packed.bytes);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const columns = {};
  for (const [name, place] of Object.entries(packed.columns)) {
    columns[name] = unpackColumn(bytes.subarray(place.begin, place.end), place.series, place.resolution);
  }
  return columns;
}

// Returns one Float32Array per series, so columns.x[unit][frame].
function unpackColumn(bytes, count, resolution) {
  const changes = [];
  let at = 0;
  const number = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const code = number();
    if (code === 0) {
      for (let run = number(); run > 0; run--) changes.push(0);
    } else {
      changes.push(code % 2 ? -(code + 1) / 2 : code / 2);
    }
  }
  const length = count ? changes.length / count : 0;
  return Array.from({ length: count }, (_, series) => {
    const values = new Float32Array(length);
    let steps = 0;
    for (let i = 0; i < length; i++) {
      steps += changes[series * length + i];
      values[i] = steps * resolution;
    }
    return values;
  });
}
