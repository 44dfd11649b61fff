"""Pictures of robots, drawn by MuJoCo without a screen."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.errors import EnvError
from twostep.worlds.quadruped import robot
from twostep.worlds.quadruped.physics import POSITION, Physics
from twostep.worlds.quadruped.terrain import CELL, SPACING, Terrain

Array = npt.NDArray[Any]

WIDTH, HEIGHT = 480, 320
_DRAWERS = ("egl", "osmesa")
"""Libraries that draw without a screen: on a graphics card, or on the processor."""
_DISTANCE, _ELEVATION, _AZIMUTH = 1.7, -18.0, 130.0
_FOLLOWED = 0.12
"""Part of the way to the robot that the camera moves with each picture."""
_MOST_SHAPES = 200
_COLORS = {"trunk": (0.12, 0.37, 0.66, 1.0), "knee": (0.45, 0.50, 0.55, 1.0), "foot": (0.76, 0.32, 0.11, 1.0)}
_LEG = np.array([0.62, 0.66, 0.70, 1.0], dtype=np.float32)
_LOOKS = """
  <visual><headlight ambient="0.35 0.35 0.35" diffuse="0.35 0.35 0.35" specular="0 0 0"/></visual>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.80 0.87 0.94" rgb2="0.97 0.98 1" width="32" height="192"/>
    <texture name="ground" type="2d" builtin="checker" rgb1="0.80 0.77 0.70" rgb2="0.75 0.72 0.65" width="64"
      height="64"/>
    <material name="ground" texture="ground" texuniform="true" texrepeat="1 1" specular="0"/>
  </asset>
  <worldbody><light directional="true" dir="-0.4 0.3 -1" diffuse="0.5 0.5 0.5" castshadow="false"/></worldbody>"""


class Cell(Terrain):
    """One cell of a terrain by itself, its corner at `(0, 0)`: what a picture shows, and quick to draw."""

    def __init__(self, terrain: Terrain, row: int, column: int) -> None:
        self.types, self.num_levels = (terrain.types[row],), 1
        side = round(CELL / SPACING)
        along, across = (slice(at * side, (at + 1) * side + 1) for at in (row, column))
        self.heights = terrain.heights[along, across]
        self.is_flat = not self.heights.any()
        self.size = CELL, CELL


class Film:
    """Draws robots of one world, one at a time, each on the cell where it is; a camera follows it.

    Raises:
        EnvError: No library is there that draws without a screen.
    """

    def __init__(self, terrain: Terrain, physics: Physics) -> None:
        self._mujoco = robot.import_mujoco()
        self._context: Any = _drawing_context(WIDTH, HEIGHT)
        self._terrain, self._physics = terrain, physics
        self._stages: dict[tuple[int, int], _Stage] = {}
        self._camera = self._mujoco.MjvCamera()
        self._camera.distance, self._camera.elevation, self._camera.azimuth = _DISTANCE, _ELEVATION, _AZIMUTH
        self._followed: tuple[int, int, int] | None = None

    def picture(self, row: int) -> Array:
        """Return one robot and its ground as `[H, W, 3]` bytes."""
        state = self._physics.state[row].copy()
        limits = len(self._terrain.types) - 1, self._terrain.num_levels - 1
        along, across = (int(np.clip(state[at] // CELL, 0, most)) for at, most in zip((2, 1), limits, strict=True))
        state[POSITION] -= across * CELL, along * CELL, 0
        self._follow((row, along, across), state[POSITION])
        self._context.make_current()
        if (along, across) not in self._stages:
            self._stages[along, across] = _Stage(self._mujoco, Cell(self._terrain, along, across))
        return self._stages[along, across].picture(state, self._camera)

    def close(self) -> None:
        """Give the drawing context back; harmless when called twice."""
        if self._context is not None:
            self._stages.clear()
            self._context.free()
            self._context = None

    def _follow(self, whom: tuple[int, int, int], position: Array) -> None:
        """Move the camera after a robot, at once where it is another's or on another cell."""
        gone = position - self._camera.lookat
        jumps = whom != self._followed or float(np.linalg.norm(gone)) > _DISTANCE
        self._camera.lookat[:] = position if jumps else self._camera.lookat + _FOLLOWED * gone
        self._followed = whom


class _Stage:
    """A robot on one cell, as MuJoCo draws it."""

    def __init__(self, mujoco: Any, cell: Cell) -> None:
        self._mujoco = mujoco
        self._model = robot.make_model(cell, robot.Body(), _LOOKS)
        self._data = mujoco.MjData(self._model)
        for geom in range(self._model.ngeom):
            name = mujoco.mj_id2name(self._model, mujoco.mjtObj.mjOBJ_GEOM, geom)
            if name is None:
                self._model.geom_matid[geom] = 0
            else:
                self._model.geom_rgba[geom] = _COLORS[name.rpartition("_")[2]]
        self._scene = mujoco.MjvScene(self._model, maxgeom=_MOST_SHAPES)
        self._options, self._nothing = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._options.sitegroup[:] = 0
        self._buffers = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100.value)

    def picture(self, state: Array, camera: Any) -> Array:
        mujoco, model, data = self._mujoco, self._model, self._data
        data.qpos[:] = state[1 : 1 + model.nq]
        mujoco.mj_forward(model, data)
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, self._options, self._nothing, camera, everything, self._scene)
        self._add_legs()
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._buffers)  # other stages have others
        view = mujoco.MjrRect(0, 0, WIDTH, HEIGHT)
        mujoco.mjr_render(view, self._scene, self._buffers)
        pixels = np.empty((HEIGHT, WIDTH, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, view, self._buffers)
        return pixels[::-1]

    def _add_legs(self) -> None:
        """Add thighs and shins, which touch nothing and so are no shapes of the model, from joint to joint."""
        mujoco, data = self._mujoco, self._data
        kind = mujoco.mjtGeom.mjGEOM_CAPSULE
        for leg in robot.LEGS:
            hip, knee = (data.joint(f"{leg}_{joint}").xanchor for joint in ("hip", "knee"))
            foot = data.geom(f"{leg}_foot").xpos
            for start, end, width in ((hip, knee, 0.022), (knee, foot, 0.014)):
                shape = self._scene.geoms[self._scene.ngeom]
                mujoco.mjv_initGeom(shape, kind, np.zeros(3), np.zeros(3), np.zeros(9), _LEG)
                mujoco.mjv_connector(shape, kind, width, start, end)
                self._scene.ngeom += 1


def _drawing_context(width: int, height: int) -> Any:
    """Return a context of the first library that works, or of the one that MUJOCO_GL names."""
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    said: list[str] = []
    for name in (wanted,) if wanted in _DRAWERS else _DRAWERS:
        context, complaint = _opened(name, width, height)
        if context is not None:
            return context
        said.append(complaint)
    raise EnvError(
        f"Robots cannot be drawn here, without a screen: {'; '.join(said)}. Install EGL (libegl1, on a machine with or "
        "without a graphics card) or OSMesa (libosmesa6); MUJOCO_GL=egl or osmesa chooses one."
    )


def _opened(name: str, width: int, height: int) -> tuple[Any, str]:
    try:
        context = import_module(f"mujoco.{name}").GLContext(width, height)
        context.make_current()
    except Exception as error:  # whatever a drawing library raises that is not there, or not whole
        return None, f"{name}: {' '.join(str(error).split()) or type(error).__name__}"
    return context, ""
